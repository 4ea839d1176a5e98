// SPDX-License-Identifier: AGPL-3.0-or-later
//! What every tool shares: flag table, help, exit codes, descriptors on stdin and stdout.
