// SPDX-License-Identifier: AGPL-3.0-or-later
//! Which instructions the host CPU can judge in ring 3, and why not the others.

use crate::case::Case;
use crate::compare::operand_address;
use crate::generate::encode::decode;
use iced_x86::{Code, DecoderOptions, EncodingKind, Mnemonic};
use std::sync::LazyLock;

/// Why `code` must not or cannot run natively, or `None` where it can.
pub fn exclusion(code: Code) -> Option<&'static str> {
    use Mnemonic::*;
    let info = code.op_code();
    if info.encoding() != EncodingKind::Legacy {
        return Some("not a legacy encoding");
    }
    if info.fwait() || !info.is_instruction() {
        return Some("never decoded: FWAIT and the instruction behind it are two instructions");
    }
    match code.mnemonic() {
        Syscall | Sysenter => Some("enters the host's kernel"),
        Int => Some("may enter the host's kernel (vector 0x80)"),
        Rdtsc | Rdtscp | Rdpmc => Some("reads the host's counters"),
        Cpuid | Xgetbv => Some("reads the host's model"),
        Sgdt | Sidt | Sldt | Str | Smsw => Some("ring 3 may read host state, or the host's kernel emulates it (UMIP)"),
        Lar | Lsl | Verr | Verw => Some("reads the host's descriptor tables"),
        Sysret | Sysretq => Some("in ring 3 Intel's CPUs raise #UD where AMD's raise #GP"),
        _ => None,
    }
}

/// Whether a case's first instruction would lock an operand that lies in two cache lines. Such a bus lock stops the whole
/// machine, and hypervisors slow it down or never finish it.
pub fn splits_lock(case: &Case) -> bool {
    const LINE: u64 = 64;
    let instruction = decode(case.bits, case.code(), case.rip);
    let exchanges = instruction.mnemonic() == Mnemonic::Xchg && instruction.memory_size().size() > 0;
    if !instruction.has_lock_prefix() && !exchanges {
        return false;
    }
    let size = instruction.memory_size().size() as u64;
    operand_address(case, &instruction).is_none_or(|address| address % LINE + size > LINE)
}

/// Whether the host runs x86-64 code and can be an oracle at all.
pub fn available() -> Result<(), &'static str> {
    if !cfg!(all(target_arch = "x86_64", target_os = "linux")) {
        return Err("the host is not x86-64 Linux");
    }
    Ok(())
}

/// Whether the host's CPU decodes near branches with an operand-size prefix in 64-bit mode as our model does: AMD's cut the
/// instruction pointer to 16 bits, Intel's ignore the prefix (SDM 2, JMP; APM 3, JMP near).
pub fn agrees_on_encoding(code: Code, bits: u32) -> bool {
    let info = code.op_code();
    bits != 64 || info.amd_decoder64() && (is_amd() || info.intel_decoder64())
}

/// How iced decodes as the host does.
pub fn decoder_options() -> u32 {
    if is_amd() { DecoderOptions::AMD } else { DecoderOptions::NONE }
}

/// Whether the host's CPU is of the vendor of our model. It is asked once: under a hypervisor CPUID leaves the guest and costs as much
/// as a whole case.
pub fn is_amd() -> bool {
    static AMD: LazyLock<bool> = LazyLock::new(|| {
        #[cfg(target_arch = "x86_64")]
        {
            let leaf = core::arch::x86_64::__cpuid(0);
            (leaf.ebx, leaf.edx, leaf.ecx) == (0x6874_7541, 0x6974_6e65, 0x444d_4163)
        }
        #[cfg(not(target_arch = "x86_64"))]
        false
    });
    *AMD
}

/// Whether a random instruction may run natively and must then do what ours does: implemented here and judged by the host.
pub fn runs_like_ours(code: Code, bits: u32) -> bool {
    let implemented = matches!(chaoscontrol_cpu::table::status(code), chaoscontrol_cpu::table::Status::Implemented(_));
    implemented && exclusion(code).is_none() && agrees_on_encoding(code, bits)
}
