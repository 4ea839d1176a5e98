// SPDX-License-Identifier: AGPL-3.0-or-later
//! What processors of AMD and of Intel do differently where no manual says which is right, so that the host judges ours only
//! where the two agree or the model follows the host.
//!
//! Found on an AMD EPYC of family 25, model 17, and Intel Xeons of family 6: each row is a difference that cases showed, with
//! what ours does.

use crate::case::Case;
use crate::generate::encode::{prefixes_of, straight};
use crate::host::is_amd;
use iced_x86::{Code, Instruction, Mnemonic, OpKind};

/// One difference.
struct Row {
    /// Where it shows, of an instruction and its bytes in a case.
    shows: fn(&Case, &Instruction, &[u8]) -> bool,
    /// Whether ours does as AMD's do; else as Intel's do.
    ours_is_amd: bool,
}

/// Masks of the x87 control word: invalid, overflow and underflow; denormal; underflow.
const STORE_MASKS: u16 = 0x19;
const DENORMAL_MASK: u16 = 2;
const UNDERFLOW_MASK: u16 = 0x10;
const ALIGNMENT_CHECK: u64 = 1 << 18;

const ROWS: &[Row] = &[
    // F3 REX.B 90: XCHG R8, RAX on AMD's, PAUSE on Intel's and ours.
    Row { shows: |_, one, bytes| one.code() == Code::Pause && extends_base(bytes), ours_is_amd: false },
    // LOOPE and LOOPNE with F2 or F3: on AMD's the prefix replaces the condition of the opcode; Intel's and ours ignore it.
    Row {
        shows: |case, one, bytes| {
            matches!(one.mnemonic(), Mnemonic::Loope | Mnemonic::Loopne) && repeats(case.bits, bytes)
        },
        ours_is_amd: false,
    },
    // MOVSXD with a 16-bit destination reads four bytes on AMD's, two on Intel's and ours.
    Row { shows: |_, one, _| one.code() == Code::Movsxd_r16_rm16 && reaches_memory(one), ours_is_amd: false },
    // Unaligned loads and stores of 16 bytes raise #AC under alignment checking on AMD's, not on Intel's and ours.
    Row {
        shows: |case, one, _| {
            let sixteen = one.memory_size().size() == 16 && reaches_memory(one);
            sixteen && (case.rflags & ALIGNMENT_CHECK != 0 || changes_flags(case))
        },
        ours_is_amd: false,
    },
    // An x87 store that an unmasked exception keeps from storing still faults for its address on AMD's, not on Intel's and ours.
    Row {
        shows: |case, one, _| {
            let stores = matches!(
                one.mnemonic(),
                Mnemonic::Fst | Mnemonic::Fstp | Mnemonic::Fist | Mnemonic::Fistp | Mnemonic::Fisttp | Mnemonic::Fbstp
            );
            stores && reaches_memory(one) && unmasks(case, STORE_MASKS)
        },
        ours_is_amd: false,
    },
    // A subnormal number that FSCALE and FPREM pass on as it is, with underflow unmasked: reported by AMD's and ours.
    Row {
        shows: |case, one, _| {
            matches!(one.mnemonic(), Mnemonic::Fscale | Mnemonic::Fprem | Mnemonic::Fprem1)
                && unmasks(case, UNDERFLOW_MASK)
        },
        ours_is_amd: true,
    },
    // A far call through m16:32 with REX.W pushes 16 bytes on AMD's, 8 on ours; Intel's read m16:64. One that leaves 64-bit code
    // pushes below ESP on AMD's, below RSP on Intel's and ours.
    Row {
        shows: |case, one, bytes| {
            let far = matches!(one.code(), Code::Call_m1616 | Code::Call_m1632);
            far && case.bits == 64 && (wide(bytes) || case.gpr[4] >> 32 != 0)
        },
        ours_is_amd: false,
    },
    // The pushes of a far call from 32-bit into 64-bit code wrap around at 64 bits on AMD's, at 32 on ours. Linux takes the fault in the
    // upper half for erratum 100 of the K8 and tries again for ever.
    Row {
        shows: |case, one, _| {
            let far =
                [Code::Call_m1616, Code::Call_m1632, Code::Call_ptr1616, Code::Call_ptr1632].contains(&one.code());
            far && case.bits == 32 && case.gpr[4] & 0xffff_ffff < 8
        },
        ours_is_amd: false,
    },
    // A subnormal operand of FYL2X: which of several exceptions comes first where it is unmasked.
    Row {
        shows: |case, one, _| {
            matches!(one.mnemonic(), Mnemonic::Fyl2x | Mnemonic::Fyl2xp1) && unmasks(case, DENORMAL_MASK)
        },
        ours_is_amd: false,
    },
    // VEX, EVEX and XOP: which of their undefined encodings a host has is its own.
    Row { shows: |case, one, bytes| one.is_invalid() && extended(case.bits, bytes), ours_is_amd: false },
];

/// Whether a fault of ours may be none on this host: MXCSR bit 17 (MM, misaligned exception mask) is AMD's, and reserved on Intel's
/// and ours.
pub fn may_not_fault(one: &Instruction, vector: u32) -> bool {
    const GENERAL_PROTECTION: u32 = 13;
    let loads = matches!(one.mnemonic(), Mnemonic::Ldmxcsr | Mnemonic::Fxrstor | Mnemonic::Fxrstor64);
    is_amd() && loads && vector == GENERAL_PROTECTION
}

/// Whether something in a case is not for this host to judge.
pub fn differ(case: &Case) -> bool {
    let amd = is_amd();
    let shows = |(at, one): &(usize, Instruction)| {
        let bytes = &case.code()[*at..];
        ROWS.iter().any(|row| row.ours_is_amd != amd && (row.shows)(case, one, bytes))
    };
    straight(case).iter().any(shows)
}

fn repeats(bits: u32, bytes: &[u8]) -> bool {
    prefixes_of(bits, bytes).iter().any(|byte| matches!(byte, 0xf2 | 0xf3))
}

/// Whether REX.B stands right before the opcode.
fn extends_base(bytes: &[u8]) -> bool {
    prefixes_of(64, bytes).last().is_some_and(|rex| rex & 0xf1 == 0x41)
}

/// Whether REX.W stands right before the opcode.
fn wide(bytes: &[u8]) -> bool {
    prefixes_of(64, bytes).last().is_some_and(|rex| rex & 0xf8 == 0x48)
}

fn extended(bits: u32, bytes: &[u8]) -> bool {
    matches!(bytes.get(prefixes_of(bits, bytes).len()), Some(0x62 | 0x8f | 0xc4 | 0xc5))
}

fn reaches_memory(one: &Instruction) -> bool {
    (0..one.op_count()).any(|operand| one.op_kind(operand) == OpKind::Memory)
}

/// Whether an x87 exception of `masks` may be unmasked somewhere in a case.
fn unmasks(case: &Case, masks: u16) -> bool {
    let control = u16::from_le_bytes([case.fx.0[0], case.fx.0[1]]);
    let loads = [Mnemonic::Fldcw, Mnemonic::Fldenv, Mnemonic::Frstor, Mnemonic::Fxrstor, Mnemonic::Fxrstor64];
    control & masks != masks || any(case, &loads)
}

/// Whether a case may switch alignment checking on.
fn changes_flags(case: &Case) -> bool {
    use Mnemonic::{Iret, Iretd, Iretq, Popf, Popfd, Popfq};
    any(case, &[Popf, Popfd, Popfq, Iret, Iretd, Iretq])
}

fn any(case: &Case, mnemonics: &[Mnemonic]) -> bool {
    straight(case).iter().any(|(_, one)| mnemonics.contains(&one.mnemonic()))
}
