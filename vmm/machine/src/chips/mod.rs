// SPDX-License-Identifier: AGPL-3.0-or-later
//! The platform's chips: interrupt controllers, timers, clock, console, power. Each is a register machine on guest time.

pub mod ioapic;
pub mod keyboard;
pub mod lapic;
pub mod pic;
pub mod pit;
pub mod power;
pub mod rtc;
pub mod serial;
