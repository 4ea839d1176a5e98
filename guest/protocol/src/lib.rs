// SPDX-License-Identifier: Apache-2.0
//! The wire protocol between guest and host: window, slots, doorbell, records.
//!
//! The host maps one region into guest-physical space, outside RAM:
//!
//! | offset in region | bytes | what |
//! |---|---|---|
//! | 0 | 4 KiB | doorbell page: a 4-byte write exits to the host ([`Doorbell`]); reads give 0 |
//! | 0x1000 | 1 MiB | window: ordinary memory that belongs to the device ([`layout`]) |
//!
//! The window holds a header, a [coverage map](layout::COVERAGE_OFFSET) and [`layout::SLOTS`] slots. A process claims a slot, writes [`Record`]s into its ring and
//! counts assertion hits in its counter table. The host drains a slot when its doorbell rings and at every barrier.
//! Everything is little-endian. Both sides use this crate, so there is one encoder and one strict decoder; the decoder
//! treats its input as hostile and answers every malformed byte with a typed error.

#![no_std]
#![forbid(unsafe_code)]

pub mod agent;
pub mod digest;
pub mod host;
pub mod layout;
pub mod record;

mod codec;
mod doorbell;

pub use agent::{AGENT_DONE, AgentAction, AgentRequest};
pub use codec::{DecodeError, EncodeError};
pub use doorbell::Doorbell;
pub use record::{AssertionKind, CatalogEntry, LogLevel, Number, Outcome, Record};

/// Guest-physical address of the region: the doorbell page.
pub const REGION_ADDRESS: u64 = 0xd020_0000;
/// Bytes of the doorbell page.
pub const DOORBELL_BYTES: u64 = 0x1000;
/// Bytes of the window behind the doorbell page.
pub const WINDOW_BYTES: u64 = 0x10_0000;
/// ACPI hardware id that announces the region, one `Memory32Fixed` over doorbell and window.
pub const ACPI_HID: &str = "CHAO0001";
/// Version of the window layout and of the record encoding; a change of either bumps it.
pub const VERSION: u16 = 3;
