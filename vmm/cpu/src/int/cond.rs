// SPDX-License-Identifier: AGPL-3.0-or-later
//! The sixteen conditions of Jcc, SETcc and CMOVcc, in their encoding.

use crate::core_state::Core;
use iced_x86::{Code, ConditionCode};

impl Core {
    /// Whether condition `CC` (the low four bits of the opcode) holds.
    #[inline(always)]
    pub fn condition<const CC: u8>(&self) -> bool {
        let flags = &self.flags;
        let holds = match CC >> 1 {
            0 => flags.of(),
            1 => flags.cf(),
            2 => flags.zf(),
            3 => flags.cf() | flags.zf(),
            4 => flags.sf(),
            5 => flags.pf(),
            6 => flags.sf() != flags.of(),
            _ => flags.zf() | (flags.sf() != flags.of()),
        };
        holds != (CC & 1 != 0)
    }
}

/// The encoding of a code's condition.
pub(crate) fn condition_of(code: Code) -> Option<u8> {
    Some(match code.condition_code() {
        ConditionCode::None => return None,
        ConditionCode::o => 0,
        ConditionCode::no => 1,
        ConditionCode::b => 2,
        ConditionCode::ae => 3,
        ConditionCode::e => 4,
        ConditionCode::ne => 5,
        ConditionCode::be => 6,
        ConditionCode::a => 7,
        ConditionCode::s => 8,
        ConditionCode::ns => 9,
        ConditionCode::p => 10,
        ConditionCode::np => 11,
        ConditionCode::l => 12,
        ConditionCode::ge => 13,
        ConditionCode::le => 14,
        ConditionCode::g => 15,
    })
}

/// Instantiates a handler for a condition.
macro_rules! with_condition {
    ($condition:expr, $handler:ident $(, $extra:ty)*) => {
        match $condition {
            0 => $handler::<0 $(, $extra)*>,
            1 => $handler::<1 $(, $extra)*>,
            2 => $handler::<2 $(, $extra)*>,
            3 => $handler::<3 $(, $extra)*>,
            4 => $handler::<4 $(, $extra)*>,
            5 => $handler::<5 $(, $extra)*>,
            6 => $handler::<6 $(, $extra)*>,
            7 => $handler::<7 $(, $extra)*>,
            8 => $handler::<8 $(, $extra)*>,
            9 => $handler::<9 $(, $extra)*>,
            10 => $handler::<10 $(, $extra)*>,
            11 => $handler::<11 $(, $extra)*>,
            12 => $handler::<12 $(, $extra)*>,
            13 => $handler::<13 $(, $extra)*>,
            14 => $handler::<14 $(, $extra)*>,
            _ => $handler::<15 $(, $extra)*>,
        }
    };
}
pub(crate) use with_condition;
