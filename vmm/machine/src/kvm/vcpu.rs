// SPDX-License-Identifier: AGPL-3.0-or-later
//! One VM with one virtual CPU of KVM over a machine's memory: entering it, and what it left for.
//!
//! Registers travel in the page that KVM shares with us (`KVM_CAP_SYNC_REGS`), so that a step costs one call.

use std::collections::BTreeSet;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use kvm_bindings::{
    KVM_CAP_X86_USER_SPACE_MSR, KVM_GUESTDBG_ENABLE, KVM_GUESTDBG_SINGLESTEP, KVM_INTERNAL_ERROR_EMULATION,
    KVM_MEM_LOG_DIRTY_PAGES, KVM_MSR_EXIT_REASON_FILTER, KVM_MSR_EXIT_REASON_INVAL, KVM_MSR_EXIT_REASON_UNKNOWN,
    KVM_VCPU_TSC_CTRL, KVM_VCPU_TSC_OFFSET, KVM_VCPUEVENT_VALID_SHADOW, Msrs, kvm_device_attr, kvm_enable_cap,
    kvm_guest_debug, kvm_msr_entry, kvm_regs, kvm_sregs, kvm_userspace_memory_region, kvm_vcpu_events,
};
use kvm_ioctls::{
    Cap, Kvm, MsrFilterDefaultAction, MsrFilterRange, MsrFilterRangeFlags, SyncReg, VcpuExit, VcpuFd, VmFd,
};

use super::cpuid;
use super::error::{KvmError, call};
use crate::engine::CpuModel;
use crate::memory::GuestMemory;

/// The version of the interface that has not changed since 2007.
const API_VERSION: i32 = 12;

/// What no KVM engine runs without.
const NEEDED: [(Cap, &str); 7] = [
    (Cap::UserMemory, "KVM_CAP_USER_MEMORY"),
    (Cap::SyncRegs, "KVM_CAP_SYNC_REGS"),
    (Cap::Xsave, "KVM_CAP_XSAVE"),
    (Cap::ImmediateExit, "KVM_CAP_IMMEDIATE_EXIT"),
    (Cap::VcpuEvents, "KVM_CAP_VCPU_EVENTS"),
    (Cap::X86UserSpaceMsr, "KVM_CAP_X86_USER_SPACE_MSR"),
    (Cap::X86MsrFilter, "KVM_CAP_X86_MSR_FILTER"),
];

/// Why the guest was left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// IN, or several iterations of INS at once.
    PortRead { port: u16, size: u8, count: u32 },
    /// OUT, or several iterations of OUTS at once.
    PortWrite { port: u16, size: u8, data: Vec<u8> },
    /// A load outside RAM.
    MmioRead { address: u64, size: u8 },
    /// A store outside RAM.
    MmioWrite { address: u64, size: u8, value: u64 },
    /// RDMSR or WRMSR of a register that KVM may not keep; it has not executed.
    Msr,
    /// HLT retired.
    Halted,
    /// One instruction was stepped.
    Stepped,
    /// CR8 was lowered.
    TprLowered,
    /// An interrupt could be taken.
    WindowOpen,
    /// The host interrupted; nothing of the guest's doing.
    Interrupted,
    /// Triple fault.
    Shutdown,
    /// KVM's own emulator does not know the instruction; it has not executed.
    NotEmulated,
    /// Anything else.
    Other(String),
}

/// One virtual CPU and what it runs in. Fields drop in order: the memory last.
pub(super) struct Vcpu {
    fd: VcpuFd,
    vm: VmFd,
    slots: Vec<kvm_userspace_memory_region>,
    _memory: Arc<GuestMemory>,
}

/// Opens /dev/kvm and checks what every mode needs.
pub(super) fn open() -> Result<Kvm, KvmError> {
    let kvm = Kvm::new().map_err(|error| {
        let hint = match error.errno() {
            libc::ENOENT | libc::ENODEV | libc::ENXIO => "load the host's kvm module, or use --engine exact",
            libc::EACCES | libc::EPERM => "this user needs access to it (often by the group kvm)",
            _ => "--engine exact runs without it",
        };
        KvmError::HostLacks(format!("/dev/kvm cannot be opened: {error}; {hint}"))
    })?;
    let version = kvm.get_api_version();
    if version != API_VERSION {
        return Err(KvmError::HostLacks(format!("kvm speaks version {version}, this program {API_VERSION}")));
    }
    let missing: Vec<&str> =
        NEEDED.iter().filter(|(cap, _)| !kvm.check_extension(*cap)).map(|(_, name)| *name).collect();
    if missing.is_empty() { Ok(kvm) } else { Err(KvmError::HostLacks(format!("kvm lacks {}", missing.join(", ")))) }
}

impl Vcpu {
    /// A CPU at power-on over `memory`, showing `model`.
    pub fn new(kvm: &Kvm, memory: Arc<GuestMemory>, model: CpuModel) -> Result<Self, KvmError> {
        let vm = call("KVM_CREATE_VM", kvm.create_vm())?;
        let mut slots = Vec::new();
        for (slot, (address, bytes, pointer)) in (0..).zip(memory.regions()) {
            let region = kvm_userspace_memory_region {
                slot,
                flags: KVM_MEM_LOG_DIRTY_PAGES,
                guest_phys_addr: address,
                memory_size: bytes,
                userspace_addr: pointer as u64,
            };
            // SAFETY: the pointer is the live mapping of `memory`, `bytes` long, which outlives the VM (fields drop in order).
            call("KVM_SET_USER_MEMORY_REGION", unsafe { vm.set_user_memory_region(region) })?;
            slots.push(region);
        }
        filter_msrs(&vm)?;
        let mut fd = call("KVM_CREATE_VCPU", vm.create_vcpu(0))?;
        call("KVM_SET_CPUID2", fd.set_cpuid2(&cpuid::entries(model)?))?;
        for registers in [SyncReg::Register, SyncReg::SystemRegister, SyncReg::VcpuEvents] {
            fd.set_sync_valid_reg(registers);
        }
        let (regs, sregs) = (call("KVM_GET_REGS", fd.get_regs())?, call("KVM_GET_SREGS", fd.get_sregs())?);
        let events = call("KVM_GET_VCPU_EVENTS", fd.get_vcpu_events())?;
        let sync = fd.sync_regs_mut();
        (sync.regs, sync.sregs, sync.events) = (regs, sregs, events);
        Ok(Self { fd, vm, slots, _memory: memory })
    }

    /// The calls that are not on the way of every exit.
    pub fn fd(&self) -> &VcpuFd {
        &self.fd
    }

    /// Whether every entry runs one instruction only.
    pub fn set_single_step(&mut self, on: bool) -> Result<(), KvmError> {
        let control = if on { KVM_GUESTDBG_ENABLE | KVM_GUESTDBG_SINGLESTEP } else { 0 };
        let debug = kvm_guest_debug { control, ..Default::default() };
        call("KVM_SET_GUEST_DEBUG", self.fd.set_guest_debug(&debug))
    }

    /// General registers as the last entry left them, or as set since.
    pub fn regs(&self) -> kvm_regs {
        self.fd.sync_regs().regs
    }

    /// System registers likewise.
    pub fn sregs(&self) -> kvm_sregs {
        self.fd.sync_regs().sregs
    }

    /// Pending events and shadows likewise.
    pub fn events(&self) -> kvm_vcpu_events {
        self.fd.sync_regs().events
    }

    /// General registers for the next entry.
    pub fn set_regs(&mut self, regs: &kvm_regs) {
        self.fd.sync_regs_mut().regs = *regs;
        self.fd.set_sync_dirty_reg(SyncReg::Register);
    }

    /// System registers, now: a value that this KVM cannot hold is refused here.
    pub fn set_sregs(&mut self, sregs: &kvm_sregs) -> Result<(), KvmError> {
        call("KVM_SET_SREGS", self.fd.set_sregs(sregs))?;
        self.fd.sync_regs_mut().sregs = *sregs;
        Ok(())
    }

    /// Events, now.
    pub fn set_events(&mut self, events: &kvm_vcpu_events) -> Result<(), KvmError> {
        call("KVM_SET_VCPU_EVENTS", self.fd.set_vcpu_events(events))?;
        self.fd.sync_regs_mut().events = *events;
        Ok(())
    }

    /// CR8 as the guest left it.
    pub fn cr8(&mut self) -> u8 {
        self.fd.get_kvm_run().cr8 as u8
    }

    /// CR8 for the next entry.
    pub fn set_cr8(&mut self, class: u8) {
        self.fd.get_kvm_run().cr8 = u64::from(class);
    }

    /// Whether the next entries leave as soon as an interrupt can be taken.
    pub fn set_window(&mut self, wanted: bool) {
        self.fd.get_kvm_run().request_interrupt_window = u8::from(wanted);
    }

    /// Finishes the instruction that waits for its answer, and no more. None where it retired (or faulted).
    pub fn complete(&mut self) -> Result<Option<Event>, KvmError> {
        self.fd.set_kvm_immediate_exit(1);
        let event = self.enter();
        self.fd.set_kvm_immediate_exit(0);
        Ok(match event? {
            Event::Interrupted => None,
            event => Some(event),
        })
    }

    /// Runs until the guest is left.
    pub fn enter(&mut self) -> Result<Event, KvmError> {
        let event = match self.fd.run() {
            Err(error) if [libc::EINTR, libc::EAGAIN].contains(&error.errno()) => Event::Interrupted,
            Err(error) => return Err(KvmError::Call { call: "KVM_RUN", why: error.to_string() }),
            Ok(VcpuExit::IoIn(port, data)) => Event::PortRead { port, size: 1, count: data.len() as u32 },
            Ok(VcpuExit::IoOut(port, data)) => Event::PortWrite { port, size: 1, data: data.to_vec() },
            Ok(VcpuExit::MmioRead(address, data)) => Event::MmioRead { address, size: data.len() as u8 },
            Ok(VcpuExit::MmioWrite(address, data)) => {
                let mut value = [0; 8];
                value[..data.len()].copy_from_slice(data);
                Event::MmioWrite { address, size: data.len() as u8, value: u64::from_le_bytes(value) }
            }
            Ok(VcpuExit::X86Rdmsr(_) | VcpuExit::X86Wrmsr(_)) => Event::Msr,
            Ok(VcpuExit::Hlt) => Event::Halted,
            Ok(VcpuExit::Debug(_)) => Event::Stepped,
            Ok(VcpuExit::SetTpr) => Event::TprLowered,
            Ok(VcpuExit::IrqWindowOpen) => Event::WindowOpen,
            Ok(VcpuExit::Intr) => Event::Interrupted,
            Ok(VcpuExit::Shutdown) => Event::Shutdown,
            Ok(VcpuExit::InternalError) => Event::NotEmulated,
            Ok(other) => Event::Other(format!("{other:?}")),
        };
        self.fd.clear_sync_dirty_reg(SyncReg::Register);
        Ok(self.refine(event))
    }

    /// What the library's exit types leave out.
    fn refine(&mut self, event: Event) -> Event {
        let run = self.fd.get_kvm_run();
        // SAFETY: each union field is the one that KVM filled in for the exit at hand.
        unsafe {
            match event {
                Event::PortRead { port, .. } => {
                    let io = run.__bindgen_anon_1.io;
                    Event::PortRead { port, size: io.size, count: io.count }
                }
                Event::PortWrite { port, data, .. } => {
                    Event::PortWrite { port, size: run.__bindgen_anon_1.io.size, data }
                }
                Event::NotEmulated => {
                    let suberror = run.__bindgen_anon_1.internal.suberror;
                    if suberror == KVM_INTERNAL_ERROR_EMULATION {
                        event
                    } else {
                        Event::Other(format!("internal error {suberror}"))
                    }
                }
                event => event,
            }
        }
    }

    /// Answers a `PortRead` with all its values, `size` bytes each.
    pub fn answer_port(&mut self, data: &[u8]) {
        let run = self.fd.get_kvm_run();
        // SAFETY: the last exit was a port read.
        let io = unsafe { run.__bindgen_anon_1.io };
        assert_eq!(data.len(), io.size as usize * io.count as usize, "an answer of another length");
        let base: *mut u8 = std::ptr::from_mut(run).cast();
        // SAFETY: KVM states where in the pages it shares the data lies; it has room for `size * count` bytes.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), base.add(io.data_offset as usize), data.len()) };
    }

    /// Answers a `MmioRead`.
    pub fn answer_mmio(&mut self, value: u64) {
        self.fd.get_kvm_run().__bindgen_anon_1.mmio.data = value.to_le_bytes();
    }

    /// Takes back an `Msr` exit: the instruction has not executed, and KVM knows nothing of it any more.
    pub fn withdraw_msr(&mut self) -> Result<(), KvmError> {
        self.fd.get_kvm_run().__bindgen_anon_1.msr.error = 1;
        if let Some(event) = self.complete()? {
            return Err(KvmError::UnexpectedExit { what: format!("{event:?} after an msr"), rip: self.regs().rip });
        }
        // What is left of it is a #GP that has not been delivered.
        let mut events = self.events();
        (events.exception.pending, events.exception.injected) = (0, 0);
        events.exception_has_payload = 0;
        events.flags = KVM_VCPUEVENT_VALID_SHADOW;
        self.set_events(&events)
    }

    /// An exception is on its way into the guest, which our own form of the state has no place for.
    pub fn delivering(&self) -> bool {
        let events = self.events();
        events.exception.pending | events.exception.injected | events.interrupt.injected | events.nmi.injected != 0
    }

    /// Pages the guest wrote since the last call, or every page where KVM does not say.
    pub fn take_dirty(&mut self, pages: &mut BTreeSet<u64>) {
        for region in &self.slots {
            let (first, bytes) = (region.guest_phys_addr >> 12, region.memory_size);
            match self.vm.get_dirty_log(region.slot, bytes as usize) {
                Ok(words) => {
                    for (index, word) in (0u64..).zip(words).filter(|(_, word)| *word != 0) {
                        pages.extend((0..64).filter(|bit| word >> bit & 1 == 1).map(|bit| first + index * 64 + bit));
                    }
                }
                Err(_) => pages.extend(first..first + (bytes >> 12)),
            }
        }
    }

    /// Makes KVM forget what it derived from memory, for a KVM that does not see what the host writes to page tables. Pages that
    /// the guest wrote are collected first: the log goes with the slot.
    pub fn forget_derived(&mut self, pages: &mut BTreeSet<u64>) -> Result<(), KvmError> {
        self.take_dirty(pages);
        for region in &self.slots {
            for memory_size in [0, region.memory_size] {
                let region = kvm_userspace_memory_region { memory_size, ..*region };
                // SAFETY: as when it was set first: the mapping is live and outlives the VM.
                call("KVM_SET_USER_MEMORY_REGION", unsafe { self.vm.set_user_memory_region(region) })?;
            }
        }
        Ok(())
    }

    /// Slows the TSC down until it all but stands still between two entries: one tick a millisecond of the host's.
    pub fn slow_tsc(&mut self) -> Result<(), KvmError> {
        call("KVM_SET_TSC_KHZ", self.fd.set_tsc_khz(1))
    }

    /// Makes RDTSC read `tsc` now. What passes until the guest reads it remains.
    pub fn set_tsc(&mut self, tsc: u64) -> Result<(), KvmError> {
        const TSC: u32 = 0x10;
        let error = |error| KvmError::Call { call: "an MSR list", why: format!("{error:?}") };
        let entry = kvm_msr_entry { index: TSC, ..Default::default() };
        let mut msrs = Msrs::from_entries(&[entry]).map_err(error)?;
        call("KVM_GET_MSRS", self.fd.get_msrs(&mut msrs))?;
        let mut offset = 0;
        call("KVM_GET_DEVICE_ATTR", tsc_offset(&self.fd, KVM_GET_DEVICE_ATTR, &mut offset))?;
        offset = offset.wrapping_add(tsc.wrapping_sub(msrs.as_slice()[0].data));
        call("KVM_SET_DEVICE_ATTR", tsc_offset(&self.fd, KVM_SET_DEVICE_ATTR, &mut offset))
    }
}

/// `_IOW(KVMIO, 0xe1, struct kvm_device_attr)`, and 0xe2.
const KVM_SET_DEVICE_ATTR: libc::c_ulong = 0x4018_aee1;
const KVM_GET_DEVICE_ATTR: libc::c_ulong = 0x4018_aee2;

/// Sets or gets the offset of a virtual CPU's TSC. The library has these calls for devices only.
fn tsc_offset(fd: &VcpuFd, request: libc::c_ulong, offset: &mut u64) -> Result<(), kvm_ioctls::Error> {
    let attribute = kvm_device_attr {
        group: KVM_VCPU_TSC_CTRL,
        attr: u64::from(KVM_VCPU_TSC_OFFSET),
        addr: std::ptr::from_mut(offset) as u64,
        flags: 0,
    };
    // SAFETY: the descriptor is open; this attribute is eight bytes, which `offset` has room for past the call.
    match unsafe { libc::ioctl(fd.as_raw_fd(), request, &raw const attribute) } {
        0 => Ok(()),
        _ => Err(kvm_ioctls::Error::last()),
    }
}

/// Leaves to KVM the registers that only hold a value for the CPU; every other access becomes an exit.
fn filter_msrs(vm: &VmFd) -> Result<(), KvmError> {
    let cap = kvm_enable_cap {
        cap: KVM_CAP_X86_USER_SPACE_MSR,
        args: [
            u64::from(KVM_MSR_EXIT_REASON_INVAL | KVM_MSR_EXIT_REASON_UNKNOWN | KVM_MSR_EXIT_REASON_FILTER),
            0,
            0,
            0,
        ],
        ..Default::default()
    };
    call("KVM_ENABLE_CAP user space msrs", vm.enable_cap(&cap))?;
    /// First register, how many, and which of them: SYSENTER; EFER to SFMASK without CSTAR's gap; the three bases.
    const KEPT: [(u32, u32, [u8; 1]); 3] =
        [(0x174, 3, [0b111]), (0xc000_0080, 5, [0b1_1111]), (0xc000_0100, 3, [0b111])];
    let flags = MsrFilterRangeFlags::READ | MsrFilterRangeFlags::WRITE;
    let ranges = KEPT.each_ref().map(|(base, msr_count, bitmap)| MsrFilterRange {
        flags,
        base: *base,
        msr_count: *msr_count,
        bitmap,
    });
    call("KVM_X86_SET_MSR_FILTER", vm.set_msr_filter(MsrFilterDefaultAction::DENY, &ranges))
}
