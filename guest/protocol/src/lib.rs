// SPDX-License-Identifier: Apache-2.0
//! The wire protocol between guest and host: window, slots, doorbell, records.
//!
//! The host maps one region into guest-physical space, outside RAM. Its first page is the doorbell (every access exits to
//! the host); the pages after it are ordinary memory that belongs to the device: a header page, then one slot a process.

#![no_std]

/// Guest-physical address of the region: the doorbell page.
pub const REGION_ADDRESS: u64 = 0xd020_0000;
/// Bytes of the doorbell page.
pub const DOORBELL_BYTES: u64 = 0x1000;
/// Bytes of the window behind the doorbell page.
pub const WINDOW_BYTES: u64 = 0x10_0000;
