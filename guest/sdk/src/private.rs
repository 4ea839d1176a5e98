// SPDX-License-Identifier: Apache-2.0
//! What the macros expand to. No part of the public interface.

pub use crate::agree::agree;
pub use crate::numeric::{Closest, guide, report_numeric};
pub use crate::runtime::{needs_report, report};
pub use crate::site::{SITES, Site, package_relative, stable};
pub use chaoscontrol_protocol::AssertionKind;
pub use linkme;
