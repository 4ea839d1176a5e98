// SPDX-License-Identifier: AGPL-3.0-or-later
//! Fault types, schedules, planning and the stage ledger.
