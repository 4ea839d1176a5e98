// SPDX-License-Identifier: AGPL-3.0-or-later
//! Oracles for the exact CPU.
//!
//! - [`native`] runs a case on the host CPU, [`guest`] runs the same case on ours, [`compare`] tells them apart under the
//!   masks of [`masks`], [`generate`] makes cases and [`minimize`] makes a failing one small; [`differential`] is the loop.
//! - [`qemu`] steps both through ring-0 programs.
//! - [`stops`] runs programs, those of [`selfedit`] among them, with stops, restores and other cache sizes.
//! - [`vendors`] says what a host of another vendor than the model's, or of the same, does in its own way.
//! - [`fuzz`] runs arbitrary bytes as a guest; [`walk`] says which oracle judges which instruction.

pub mod approx;
pub mod case;
pub mod compare;
pub mod differential;
pub mod fuzz;
pub mod generate;
pub mod guest;
pub mod host;
pub mod layout;
pub mod masks;
pub mod minimize;
pub mod native;
pub mod qemu;
pub mod ram;
pub mod random;
pub mod report;
pub mod selfedit;
pub mod stops;
pub mod values;
pub mod vendors;
pub mod walk;
