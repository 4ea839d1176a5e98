// SPDX-License-Identifier: AGPL-3.0-or-later
//! Verdicts, acceptance statuses, receipts and their verification.
