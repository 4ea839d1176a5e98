// SPDX-License-Identifier: AGPL-3.0-or-later
//! Coverage, corpus, mutation, rounds, minimization and replay.
