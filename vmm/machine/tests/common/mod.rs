// SPDX-License-Identifier: AGPL-3.0-or-later
//! Tiny guests assembled in the tests, packed as ELF kernels.

#![allow(dead_code, reason = "each test file uses its own part")]

pub mod kvm;
pub mod linux;

use std::sync::Arc;

use chaoscontrol_machine::{GuestNs, Machine, Stop, VmConfig};
use iced_x86::BlockEncoderOptions;
use iced_x86::code_asm::{CodeAssembler, CodeLabel};

/// Where tiny guests lie and what they use.
pub const CODE: u64 = 0x10_0000;
pub const IDT: u64 = 0x20_0000;
pub const IDT_POINTER: u64 = 0x20_2000;
/// Counters and logs of the guest.
pub const DATA: u64 = 0x21_0000;
pub const MEMORY_BYTES: u64 = 8 << 20;
pub const LAPIC: u64 = 0xfee0_0000;

/// Bytes of ELF headers before the code.
pub const HEADER_BYTES: u64 = 120;

/// An ELF file that is loaded whole at `address`; its code, and entry, come after the headers.
pub fn elf(code: &[u8], address: u64) -> Vec<u8> {
    let mut file = Vec::new();
    file.extend([0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    for half in [2u16, 62] {
        file.extend(half.to_le_bytes());
    }
    file.extend(1u32.to_le_bytes());
    for word in [address + HEADER_BYTES, 64, 0] {
        file.extend(word.to_le_bytes());
    }
    file.extend(0u32.to_le_bytes());
    for half in [64u16, 56, 1, 0, 0, 0] {
        file.extend(half.to_le_bytes());
    }
    file.extend(1u32.to_le_bytes());
    file.extend(7u32.to_le_bytes());
    let bytes = HEADER_BYTES + code.len() as u64;
    for word in [0, address, address, bytes, bytes, 4096] {
        file.extend(word.to_le_bytes());
    }
    file.extend(code);
    file
}

/// Assembles a guest; `handlers` become interrupt gates.
pub fn assemble(build: impl FnOnce(&mut CodeAssembler) -> Vec<(u8, CodeLabel)>) -> (Vec<u8>, Vec<(u8, u64)>) {
    let mut assembler = CodeAssembler::new(64).expect("64 bits");
    let handlers = build(&mut assembler);
    let result = assembler
        .assemble_options(CODE + HEADER_BYTES, BlockEncoderOptions::RETURN_NEW_INSTRUCTION_OFFSETS)
        .expect("the guest assembles");
    let addresses = handlers
        .into_iter()
        .map(|(vector, label)| (vector, result.label_ip(&label).expect("a handler's label is set")))
        .collect();
    (result.inner.code_buffer, addresses)
}

/// A loaded machine with this guest; `change` may change its configuration.
pub fn machine_with(
    build: impl FnOnce(&mut CodeAssembler) -> Vec<(u8, CodeLabel)>,
    change: impl FnOnce(&mut VmConfig),
) -> Machine {
    let (code, handlers) = assemble(build);
    let mut config = VmConfig::new(MEMORY_BYTES, elf(&code, CODE).into());
    change(&mut config);
    let mut machine = Machine::new(Arc::new(config)).expect("a machine");
    prepare(&mut machine, handlers);
    machine
}

/// Loads the guest and points the interrupt table at its handlers.
pub fn prepare(machine: &mut Machine, handlers: Vec<(u8, u64)>) {
    machine.load().expect("loads");
    for (vector, address) in handlers {
        machine.memory().write(IDT + u64::from(vector) * 16, &gate(address)).expect("the table is in memory");
    }
    let mut pointer = 0xfffu16.to_le_bytes().to_vec();
    pointer.extend(IDT.to_le_bytes());
    machine.memory().write(IDT_POINTER, &pointer).expect("the pointer is in memory");
}

/// A loaded machine with this guest.
pub fn machine(build: impl FnOnce(&mut CodeAssembler) -> Vec<(u8, CodeLabel)>) -> Machine {
    machine_with(build, |_| {})
}

fn gate(address: u64) -> Vec<u8> {
    let mut gate = (address as u16).to_le_bytes().to_vec();
    gate.extend(0x10u16.to_le_bytes());
    gate.extend([0, 0x8e]);
    gate.extend(((address >> 16) as u16).to_le_bytes());
    gate.extend(((address >> 32) as u32).to_le_bytes());
    gate.extend(0u32.to_le_bytes());
    gate
}

/// A 64-bit value of guest memory.
pub fn read64(machine: &Machine, address: u64) -> u64 {
    let mut bytes = [0; 8];
    machine.memory().read(address, &mut bytes).expect("in memory");
    u64::from_le_bytes(bytes)
}

/// Runs to `deadline`, jumping over idle time.
pub fn run(machine: &mut Machine, deadline: u64) {
    loop {
        match machine.run_until(GuestNs(deadline)).expect("runs") {
            Stop::Deadline => return,
            Stop::Idle { .. } => machine.skip_to(GuestNs(deadline)),
            stop => panic!("{stop:?}"),
        }
    }
}
