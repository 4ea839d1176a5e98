// SPDX-License-Identifier: AGPL-3.0-or-later
//! The board: every device at its address, and the wires between them.

use serde::{Deserialize, Serialize};

/// The saved state of every device on the board.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BoardState {}
