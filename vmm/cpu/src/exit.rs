// SPDX-License-Identifier: AGPL-3.0-or-later
//! Why a run stopped.

/// A reason to leave [`crate::Cpu::run`]. Reads carry no value yet: the caller answers with `complete_read` and runs on;
/// writes are done once the caller runs on. Neither may be dropped: until it is answered, the instruction has not retired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// The budget is used up, to the instruction.
    BudgetUsed,
    /// HLT retired and no interrupt is pending.
    Halted,
    /// IN or one iteration of INS: `size` is 1, 2 or 4 bytes.
    PortRead {
        /// Port number.
        port: u16,
        /// Bytes.
        size: u8,
    },
    /// OUT or one iteration of OUTS.
    PortWrite {
        /// Port number.
        port: u16,
        /// Bytes.
        size: u8,
        /// Value, zero-extended.
        value: u32,
    },
    /// A load from a physical address that is not RAM; never crosses an 8-byte boundary.
    MmioRead {
        /// Physical address.
        address: u64,
        /// Bytes: 1 to 8.
        size: u8,
    },
    /// A store to a physical address that is not RAM; never crosses an 8-byte boundary.
    MmioWrite {
        /// Physical address.
        address: u64,
        /// Bytes: 1 to 8.
        size: u8,
        /// Value, zero-extended.
        value: u64,
    },
    /// RDMSR of a register the CPU does not keep (local APIC base, x2APIC, TSC deadline, platform). The caller answers with a
    /// value or refuses, which raises #GP(0).
    MsrRead {
        /// MSR index.
        index: u32,
    },
    /// WRMSR of a register the CPU does not keep. The caller accepts or refuses, which raises #GP(0).
    MsrWrite {
        /// MSR index.
        index: u32,
        /// Value.
        value: u64,
    },
    /// CR8 was written; the value is in the state. The caller may have an interrupt that is no longer masked.
    TprWrite,
    /// An interrupt window was asked for and is open: an interrupt can be injected now.
    InterruptWindow,
    /// Triple fault, or a shutdown for another architectural reason.
    Shutdown,
    /// The guest did something this CPU model does not define well enough to go on; the text names it and where.
    GuestError(GuestError),
}

/// What a guest did that cannot be carried on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum GuestError {
    /// A hardware task switch, or virtual-8086 mode, which this engine does not have.
    UnsupportedMode {
        /// Where.
        rip: u64,
    },
    /// Code was fetched from a physical address that is not RAM.
    FetchOutsideRam {
        /// Where.
        rip: u64,
    },
    /// An exception or interrupt could not be delivered because its stack or a descriptor table is outside RAM.
    DeliveryOutsideRam {
        /// The vector.
        vector: u8,
        /// Where it happened.
        rip: u64,
    },
}
