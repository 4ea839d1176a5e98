// SPDX-License-Identifier: AGPL-3.0-or-later
//! The shell that runs N machines as the pure core commands: boot, branches, snapshots, the assertion oracle.
