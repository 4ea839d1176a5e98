// SPDX-License-Identifier: AGPL-3.0-or-later
//! The local APIC of a CPU, with its timer. x2APIC is not offered.
//!
//! Source: AMD64 APM vol. 2 chapter 16, Intel SDM vol. 3 chapter 11 (TSC deadline). The timer's base clock is 1 GHz of guest
//! time: one tick of the undivided count a nanosecond.

use serde::{Deserialize, Serialize};

use super::ioapic::{Delivery, Message};
use crate::device::{Context, Device, StateError, fill, value_of};
use crate::time::GuestNs;

/// Version 0x14, five LVT entries above the first (highest index 5), no EOI broadcast suppression.
const VERSION: u32 = 0x14 | 5 << 16;
const LVT_MASKED: u32 = 1 << 16;
const SVR_ENABLED: u32 = 1 << 8;
/// Error status bits this APIC reports: illegal vector sent, received, illegal register.
const ESR_SEND_ILLEGAL: u32 = 1 << 5;
const ESR_RECEIVE_ILLEGAL: u32 = 1 << 6;
const ESR_ILLEGAL_REGISTER: u32 = 1 << 7;
/// APIC base MSR: the first CPU of the machine.
const APIC_BASE_BOOT_CPU: u64 = 1 << 8;
/// APIC base MSR of the first CPU: enabled, boot processor, default address.
pub const APIC_BASE_DEFAULT: u64 = 0xfee0_0000 | APIC_BASE_ENABLED | APIC_BASE_BOOT_CPU;
/// APIC base MSR: globally enabled.
pub const APIC_BASE_ENABLED: u64 = 1 << 11;

/// Index of each local vector table entry in [`LapicState::lvt`].
mod lvt {
    pub const TIMER: usize = 0;
    pub const LINT0: usize = 3;
    pub const ERROR: usize = 5;
}
/// Bits that can be written in each entry: timer, thermal, performance, LINT0, LINT1, error.
const LVT_WRITABLE: [u32; 6] = [0x7_00ff, 0x1_07ff, 0x1_07ff, 0x1_a7ff, 0x1_a7ff, 0x1_00ff];

/// Saved state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LapicState {
    /// APIC base MSR.
    pub base: u64,
    /// Identity, bits 31..24.
    pub id: u32,
    /// Task priority; its high nibble is the CPU's CR8.
    pub tpr: u8,
    /// Logical destination, bits 31..24.
    pub ldr: u32,
    /// Destination format; bits 27..0 are ones.
    pub dfr: u32,
    /// Spurious vector and software enable.
    pub svr: u32,
    /// In service, 256 bits.
    pub isr: [u32; 8],
    /// Trigger mode: level where set.
    pub tmr: [u32; 8],
    /// Requested.
    pub irr: [u32; 8],
    /// Error status as the guest reads it.
    pub esr: u32,
    /// Errors since the guest last wrote ESR.
    pub esr_pending: u32,
    /// Interrupt command.
    pub icr: u64,
    /// Timer, thermal, performance, LINT0, LINT1, error.
    pub lvt: [u32; 6],
    /// Timer initial count.
    pub initial: u32,
    /// Timer divide configuration (bits 0, 1, 3).
    pub divide: u32,
    /// Timer count that held at `count_at`.
    pub count: u32,
    /// When `count` held.
    pub count_at: GuestNs,
    /// When the one-shot or periodic timer fires next.
    pub deadline: Option<GuestNs>,
    /// The TSC deadline MSR as the guest reads it; zero when disarmed.
    pub tsc_deadline: u64,
    /// Guest time of the TSC deadline.
    pub tsc_deadline_at: Option<GuestNs>,
    /// A non-maskable interrupt waits for the CPU.
    pub nmi: bool,
    /// An ExtINT message waits for the CPU (from the I/O APIC, not LINT0).
    pub extint: bool,
}

impl Default for LapicState {
    /// As firmware leaves it for an operating system: enabled, LINT0 the PIC's virtual wire, LINT1 NMI.
    fn default() -> Self {
        Self {
            base: APIC_BASE_DEFAULT,
            id: 0,
            tpr: 0,
            ldr: 0,
            dfr: u32::MAX,
            svr: SVR_ENABLED | 0xff,
            isr: [0; 8],
            tmr: [0; 8],
            irr: [0; 8],
            esr: 0,
            esr_pending: 0,
            icr: 0,
            lvt: [LVT_MASKED, LVT_MASKED, LVT_MASKED, 0x700, 0x400, LVT_MASKED],
            initial: 0,
            divide: 0,
            count: 0,
            count_at: GuestNs(0),
            deadline: None,
            tsc_deadline: 0,
            tsc_deadline_at: None,
            nmi: false,
            extint: false,
        }
    }
}

/// The chip.
#[derive(Debug)]
pub struct Lapic {
    state: LapicState,
    /// There is no other CPU.
    alone: bool,
    /// Vectors of level-triggered interrupts that ended; the board hands them to the I/O APIC after each access.
    ended: Option<u8>,
    /// A message for other CPUs; the board delivers it after each access.
    outgoing: Option<Ipi>,
}

/// What one CPU's interrupt command sends to others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipi {
    /// How, which vector, to whom.
    pub message: Message,
    /// To all others, whatever the destination says.
    pub all_others: bool,
}

/// What a message asks of a whole CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CpuRequest {
    /// INIT.
    Init,
    /// A start-up message with its vector.
    StartUp(u8),
}

impl LapicState {
    /// After reset or INIT: software-disabled, everything masked (AMD64 APM vol. 2, 16.3.2).
    fn after_init(base: u64, id: u32) -> Self {
        Self { base, id, svr: 0xff, lvt: [LVT_MASKED; 6], ..Self::default() }
    }
}

fn highest(bits: &[u32; 8]) -> Option<u8> {
    let word = bits.iter().rposition(|word| *word != 0)?;
    Some((word * 32) as u8 + 31 - bits[word].leading_zeros() as u8)
}

fn set(bits: &mut [u32; 8], vector: u8) {
    bits[usize::from(vector) / 32] |= 1 << (vector % 32);
}

fn clear(bits: &mut [u32; 8], vector: u8) {
    bits[usize::from(vector) / 32] &= !(1 << (vector % 32));
}

fn is_set(bits: &[u32; 8], vector: u8) -> bool {
    bits[usize::from(vector) / 32] >> (vector % 32) & 1 == 1
}

impl Default for Lapic {
    /// That of the only CPU.
    fn default() -> Self {
        Self::of_cpu(0, 1)
    }
}

impl Lapic {
    /// The local APIC of one of `count` CPUs at power-on: the first's as firmware leaves it, the others' after reset.
    pub fn of_cpu(number: u8, count: u8) -> Self {
        let state = match number {
            0 => LapicState::default(),
            _ => LapicState::after_init(APIC_BASE_DEFAULT & !APIC_BASE_BOOT_CPU, u32::from(number) << 24),
        };
        Self { state, alone: count == 1, ended: None, outgoing: None }
    }

    /// INIT: all but base and identity are as after reset.
    pub fn init(&mut self) {
        self.state = LapicState::after_init(self.state.base, self.state.id);
    }

    /// Takes the message that waits for other CPUs.
    pub fn take_outgoing(&mut self) -> Option<Ipi> {
        self.outgoing.take()
    }

    /// The class of what may interrupt now: the lowest of these takes a lowest-priority message.
    pub fn priority(&self) -> u8 {
        self.ppr() >> 4
    }

    /// Whether a message with this destination is for this CPU.
    pub fn is_addressed(&self, message: &Message) -> bool {
        self.is_enabled() && self.is_destination(message.destination, message.logical)
    }

    /// Whether the APIC is switched on in its base MSR.
    pub fn is_enabled(&self) -> bool {
        self.state.base & APIC_BASE_ENABLED != 0
    }

    fn is_software_enabled(&self) -> bool {
        self.is_enabled() && self.state.svr & SVR_ENABLED != 0
    }

    /// Whether the PIC's INTR reaches the CPU: through LINT0 in ExtINT mode, or directly when the APIC is off.
    pub fn passes_pic(&self) -> bool {
        let lint0 = self.state.lvt[lvt::LINT0];
        !self.is_enabled() || lint0 & LVT_MASKED == 0 && Delivery::from_bits(u64::from(lint0) >> 8) == Delivery::ExtInt
    }

    /// The APIC base MSR.
    pub fn base(&self) -> u64 {
        self.state.base
    }

    /// Writes the APIC base MSR. False (#GP) for x2APIC, another address or reserved bits.
    pub fn set_base(&mut self, value: u64) -> bool {
        if (value ^ self.state.base) & !APIC_BASE_ENABLED != 0 {
            return false;
        }
        if value & APIC_BASE_ENABLED == 0 {
            // Switching off resets everything but the identity (APM vol. 2, 16.3.1).
            self.state = LapicState::after_init(value, self.state.id);
        }
        self.state.base = value;
        true
    }

    /// The task priority register.
    pub fn tpr(&self) -> u8 {
        self.state.tpr
    }

    /// The guest wrote CR8.
    pub fn set_tpr_class(&mut self, class: u8) {
        self.state.tpr = class << 4;
    }

    fn ppr(&self) -> u8 {
        let served = highest(&self.state.isr).unwrap_or(0);
        if self.state.tpr & 0xf0 >= served & 0xf0 { self.state.tpr } else { served & 0xf0 }
    }

    /// The vector that would be delivered now, if any.
    pub fn pending(&self) -> Option<u8> {
        let vector = highest(&self.state.irr)?;
        (self.is_software_enabled() && vector & 0xf0 > self.ppr() & 0xf0).then_some(vector)
    }

    /// Delivers: the vector moves from requested to in service.
    pub fn acknowledge(&mut self) -> Option<u8> {
        let vector = self.pending()?;
        clear(&mut self.state.irr, vector);
        set(&mut self.state.isr, vector);
        Some(vector)
    }

    /// Whether a non-maskable interrupt waits.
    pub fn nmi(&self) -> bool {
        self.state.nmi
    }

    /// A non-maskable interrupt comes from outside.
    pub fn raise_nmi(&mut self) {
        self.state.nmi = true;
    }

    /// The CPU took the non-maskable interrupt.
    pub fn nmi_taken(&mut self) {
        self.state.nmi = false;
    }

    /// Whether an ExtINT message from the I/O APIC waits.
    pub fn extint(&self) -> bool {
        self.state.extint
    }

    /// The CPU took the ExtINT message.
    pub fn extint_taken(&mut self) {
        self.state.extint = false;
    }

    /// Takes the vector of a level-triggered interrupt that ended.
    pub fn take_ended(&mut self) -> Option<u8> {
        self.ended.take()
    }

    /// Accepts a message, or returns false where it is not for this CPU.
    pub fn accept(&mut self, message: Message) -> bool {
        self.is_addressed(&message) && self.take_message(message)
    }

    /// Takes a message in whose destination was already looked at.
    pub fn take_message(&mut self, message: Message) -> bool {
        match message.delivery {
            Delivery::Fixed | Delivery::LowestPriority => return self.request(message.vector, message.level),
            Delivery::Nmi => self.state.nmi = true,
            Delivery::ExtInt => self.state.extint = true,
            // Whole CPUs are the board's.
            Delivery::Init | Delivery::StartUp | Delivery::Other => {}
        }
        true
    }

    fn is_destination(&self, destination: u8, logical: bool) -> bool {
        if !logical {
            return destination == 0xff || u32::from(destination) == self.state.id >> 24;
        }
        let logical_id = (self.state.ldr >> 24) as u8;
        if self.state.dfr >> 28 == 0xf {
            destination & logical_id != 0
        } else {
            destination == 0xff || destination >> 4 == logical_id >> 4 && destination & logical_id & 0xf != 0
        }
    }

    fn request(&mut self, vector: u8, level: bool) -> bool {
        if !self.is_software_enabled() {
            return false;
        }
        if vector < 16 {
            self.error(ESR_RECEIVE_ILLEGAL);
            return false;
        }
        set(&mut self.state.irr, vector);
        if level {
            set(&mut self.state.tmr, vector);
        } else {
            clear(&mut self.state.tmr, vector);
        }
        true
    }

    fn error(&mut self, bit: u32) {
        self.state.esr_pending |= bit;
        let entry = self.state.lvt[lvt::ERROR];
        if entry & LVT_MASKED == 0 && entry & 0xff >= 16 {
            self.request(entry as u8, false);
        }
    }

    fn end_of_interrupt(&mut self) {
        let Some(vector) = highest(&self.state.isr) else { return };
        clear(&mut self.state.isr, vector);
        if is_set(&self.state.tmr, vector) {
            self.ended = Some(vector);
        }
    }

    fn send(&mut self) {
        let icr = self.state.icr;
        let to_self = match icr >> 18 & 3 {
            0 => self.is_destination((icr >> 56) as u8, icr & 1 << 11 != 0),
            1 | 2 => true,
            _ => false,
        };
        let vector = icr as u8;
        let delivery = Delivery::from_bits(icr >> 8);
        let fixed = matches!(delivery, Delivery::Fixed | Delivery::LowestPriority);
        if fixed && vector < 16 {
            return self.error(ESR_SEND_ILLEGAL);
        }
        let shorthand = icr >> 18 & 3;
        if shorthand != 1 {
            let (destination, logical) = ((icr >> 56) as u8, icr & 1 << 11 != 0);
            let message = Message { delivery, vector, level: false, destination, logical };
            // INIT with the level bit clear is the end of a signal that is no message here.
            let ends_init = delivery == Delivery::Init && icr & 1 << 14 == 0;
            let outgoing = Ipi { message, all_others: shorthand >= 2 };
            self.outgoing = Some(outgoing).filter(|_| !ends_init && !self.alone);
        }
        match delivery {
            // Of several CPUs the board finds the one that takes it.
            Delivery::LowestPriority if shorthand == 0 && !self.alone => {}
            Delivery::Fixed | Delivery::LowestPriority if to_self => {
                self.request(vector, false);
            }
            Delivery::Nmi if to_self => self.state.nmi = true,
            _ => {}
        }
    }

    // Timer.

    fn timer_mode(&self) -> u32 {
        self.state.lvt[lvt::TIMER] >> 17 & 3
    }

    fn divisor(&self) -> u64 {
        let bits = self.state.divide & 3 | self.state.divide >> 1 & 4;
        if bits == 7 { 1 } else { 2 << bits }
    }

    /// The current count at `now`.
    fn count(&self, now: GuestNs) -> u32 {
        if self.state.deadline.is_none() {
            return 0;
        }
        let ticks = now.since(self.state.count_at) / self.divisor();
        u32::try_from(u64::from(self.state.count).saturating_sub(ticks)).unwrap_or(0)
    }

    fn start_count(&mut self, count: u32, now: GuestNs) {
        self.state.count = count;
        self.state.count_at = now;
        let armed = count != 0 && self.timer_mode() != 2;
        self.state.deadline = armed.then(|| now.after(u64::from(count) * self.divisor()));
    }

    fn fire(&mut self) {
        let entry = self.state.lvt[lvt::TIMER];
        if entry & LVT_MASKED == 0 {
            self.request(entry as u8, false);
        }
    }

    fn advance_timer(&mut self, now: GuestNs) {
        if self.state.tsc_deadline_at.is_some_and(|at| at <= now) {
            self.state.tsc_deadline_at = None;
            self.state.tsc_deadline = 0;
            self.fire();
        }
        let Some(deadline) = self.state.deadline.filter(|deadline| *deadline <= now) else { return };
        self.fire();
        if self.timer_mode() == 1 && self.state.initial != 0 {
            // Periods missed while nobody ran coalesce into one interrupt; the phase stays.
            let period = u64::from(self.state.initial) * self.divisor();
            let missed = now.since(deadline) / period;
            self.state.count = self.state.initial;
            self.state.count_at = deadline.after(missed * period);
            self.state.deadline = Some(self.state.count_at.after(period));
        } else {
            self.state.count = 0;
            self.state.deadline = None;
        }
    }

    /// RDMSR of the TSC deadline.
    pub fn tsc_deadline(&self) -> u64 {
        self.state.tsc_deadline
    }

    /// WRMSR of the TSC deadline; `tsc_offset` is what the guest's TSC is ahead of guest time. Ignored in another timer mode.
    pub fn set_tsc_deadline(&mut self, value: u64, tsc_offset: u64, now: GuestNs) {
        self.advance_timer(now);
        if self.timer_mode() != 2 {
            return;
        }
        self.state.tsc_deadline = value;
        self.state.tsc_deadline_at = (value != 0).then(|| {
            let ahead = value.wrapping_sub(tsc_offset).wrapping_sub(now.0) as i64;
            now.after(u64::try_from(ahead).unwrap_or(0))
        });
        self.advance_timer(now);
    }

    fn write_lvt(&mut self, index: usize, value: u32, now: GuestNs) {
        let mode = self.timer_mode();
        let mut entry = value & LVT_WRITABLE[index];
        if !self.is_software_enabled() {
            entry |= LVT_MASKED;
        }
        self.state.lvt[index] = entry;
        if index == lvt::TIMER && self.timer_mode() != mode {
            // Entering or leaving TSC-deadline mode disarms; between one-shot and periodic the count goes on.
            if mode == 2 || self.timer_mode() == 2 {
                self.state.tsc_deadline = 0;
                self.state.tsc_deadline_at = None;
                self.start_count(0, now);
            }
        }
    }

    fn read_register(&mut self, register: u64, now: GuestNs) -> u32 {
        let state = &self.state;
        match register {
            0x02 => state.id,
            0x03 => VERSION,
            0x08 => u32::from(state.tpr),
            0x09 | 0x0b | 0x0c => 0,
            0x0a => u32::from(self.ppr()),
            0x0d => state.ldr,
            0x0e => state.dfr,
            0x0f => state.svr,
            0x10..0x18 => state.isr[register as usize - 0x10],
            0x18..0x20 => state.tmr[register as usize - 0x18],
            0x20..0x28 => state.irr[register as usize - 0x20],
            0x28 => state.esr,
            0x30 => state.icr as u32,
            0x31 => (state.icr >> 32) as u32,
            0x32..0x38 => state.lvt[register as usize - 0x32],
            0x38 => state.initial,
            0x39 => self.count(now),
            0x3e => state.divide,
            _ => {
                self.error(ESR_ILLEGAL_REGISTER);
                0
            }
        }
    }

    fn write_register(&mut self, register: u64, value: u32, now: GuestNs) {
        match register {
            0x02 => self.state.id = value & 0xff00_0000,
            0x08 => self.state.tpr = value as u8,
            0x0b => self.end_of_interrupt(),
            0x0d => self.state.ldr = value & 0xff00_0000,
            0x0e => self.state.dfr = value | 0x0fff_ffff,
            0x0f => {
                self.state.svr = value & 0x3ff;
                if value & SVR_ENABLED == 0 {
                    self.state.lvt.iter_mut().for_each(|entry| *entry |= LVT_MASKED);
                }
            }
            0x28 => self.state.esr = std::mem::take(&mut self.state.esr_pending),
            0x30 => {
                self.state.icr = self.state.icr & !0xffff_ffff | u64::from(value & 0xc_cfff);
                self.send();
            }
            0x31 => self.state.icr = self.state.icr & 0xffff_ffff | u64::from(value & 0xff00_0000) << 32,
            0x32..0x38 => self.write_lvt(register as usize - 0x32, value, now),
            0x38 if self.timer_mode() != 2 => {
                self.state.initial = value;
                self.start_count(value, now);
            }
            0x3e => {
                let count = self.count(now);
                self.state.divide = value & 0xb;
                self.start_count(count, now);
            }
            // Read-only and absent registers: only the absent ones are errors.
            0x03 | 0x09 | 0x0a | 0x0c | 0x10..0x28 | 0x38 | 0x39 => {}
            _ => self.error(ESR_ILLEGAL_REGISTER),
        }
    }
}

impl Device for Lapic {
    type State = LapicState;

    fn read(&mut self, offset: u64, data: &mut [u8], context: &mut Context<'_>) {
        self.advance_timer(context.now);
        let value = if self.is_enabled() { self.read_register(offset >> 4, context.now) } else { u32::MAX };
        fill(data, u64::from(value) >> ((offset & 3) * 8));
    }

    fn write(&mut self, offset: u64, data: &[u8], context: &mut Context<'_>) {
        self.advance_timer(context.now);
        if self.is_enabled() && offset & 0xf == 0 {
            self.write_register(offset >> 4, value_of(data) as u32, context.now);
        }
    }

    fn next_event(&self) -> Option<GuestNs> {
        // A masked timer runs on but nobody can tell until it is read.
        if self.state.lvt[lvt::TIMER] & LVT_MASKED != 0 {
            return None;
        }
        self.state.deadline.into_iter().chain(self.state.tsc_deadline_at).min()
    }

    fn advance(&mut self, context: &mut Context<'_>) {
        self.advance_timer(context.now);
    }

    fn save(&self) -> LapicState {
        self.state.clone()
    }

    fn restore(&mut self, state: &LapicState) -> Result<(), StateError> {
        let lvt_is_valid = state.lvt.iter().zip(LVT_WRITABLE).all(|(entry, writable)| entry & !writable == 0);
        if !lvt_is_valid || state.divide & !0xb != 0 || (state.base ^ self.state.base) & !APIC_BASE_ENABLED != 0 {
            return Err(StateError::new("lapic", "base, divide or vector table has undefined bits set"));
        }
        if state.irr[0] & 0xffff != 0 || state.isr[0] & 0xffff != 0 {
            return Err(StateError::new("lapic", "a vector below 16 is requested or in service"));
        }
        self.state = state.clone();
        self.ended = None;
        self.outgoing = None;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Bench, device_contract};

    const TPR: u64 = 0x80;
    const EOI: u64 = 0xb0;
    const SVR: u64 = 0xf0;
    const ICR: u64 = 0x300;
    const LVT_TIMER: u64 = 0x320;
    const INITIAL: u64 = 0x380;
    const CURRENT: u64 = 0x390;
    const DIVIDE: u64 = 0x3e0;

    fn fixed(vector: u8, level: bool) -> Message {
        Message { delivery: Delivery::Fixed, vector, level, destination: 0, logical: false }
    }

    #[test]
    fn a_higher_class_interrupts_and_the_same_class_waits() {
        let mut bench = Bench::new(Lapic::default());
        assert!(bench.device.accept(fixed(0x41, false)));
        assert_eq!(bench.device.acknowledge(), Some(0x41));
        bench.device.accept(fixed(0x4f, false));
        assert_eq!(bench.device.pending(), None, "same class");
        bench.device.accept(fixed(0x50, false));
        assert_eq!(bench.device.acknowledge(), Some(0x50));
        bench.write32(EOI, 0);
        bench.write32(EOI, 0);
        assert_eq!(bench.device.acknowledge(), Some(0x4f));
    }

    #[test]
    fn the_task_priority_holds_its_class_and_below() {
        let mut bench = Bench::new(Lapic::default());
        bench.write32(TPR, 0x40);
        bench.device.accept(fixed(0x4f, false));
        assert_eq!(bench.device.pending(), None);
        bench.device.set_tpr_class(3);
        assert_eq!(bench.read32(TPR), 0x30);
        assert_eq!(bench.device.pending(), Some(0x4f));
    }

    #[test]
    fn only_level_interrupts_tell_their_end() {
        let mut bench = Bench::new(Lapic::default());
        for level in [false, true] {
            bench.device.accept(fixed(0x61, level));
            bench.device.acknowledge();
            bench.write32(EOI, 0);
            assert_eq!(bench.device.take_ended(), level.then_some(0x61));
        }
    }

    #[test]
    fn a_one_shot_timer_fires_once_on_its_nanosecond() {
        let mut bench = Bench::new(Lapic::default());
        bench.write32(LVT_TIMER, 0x30);
        bench.write32(DIVIDE, 0x3); // by 16
        bench.write32(INITIAL, 100);
        assert_eq!(bench.device.next_event(), Some(GuestNs(1_600)));
        bench.now = GuestNs(799);
        assert_eq!(bench.read32(CURRENT), 51);
        bench.run_to(1_599);
        assert_eq!(bench.device.pending(), None);
        bench.run_to(1_600);
        assert_eq!(bench.device.acknowledge(), Some(0x30));
        assert_eq!(bench.device.next_event(), None);
        assert_eq!(bench.read32(CURRENT), 0);
    }

    #[test]
    fn a_periodic_timer_keeps_its_phase_over_missed_periods() {
        let mut bench = Bench::new(Lapic::default());
        bench.write32(LVT_TIMER, 0x2_0030);
        bench.write32(DIVIDE, 0xb); // by 1
        bench.write32(INITIAL, 1_000);
        bench.now = GuestNs(5_300);
        assert_eq!(bench.read32(CURRENT), 700);
        assert_eq!(bench.device.next_event(), Some(GuestNs(6_000)));
        assert_eq!(bench.device.acknowledge(), Some(0x30));
        assert_eq!(bench.device.acknowledge(), None, "missed periods coalesce");
    }

    #[test]
    fn a_tsc_deadline_fires_once_also_when_it_has_passed() {
        let mut bench = Bench::new(Lapic::default());
        bench.write32(LVT_TIMER, 0x4_0030);
        bench.device.set_tsc_deadline(5_000 + 70, 70, GuestNs(0));
        assert_eq!(bench.device.next_event(), Some(GuestNs(5_000)));
        bench.run_to(5_000);
        assert_eq!(bench.device.acknowledge(), Some(0x30));
        assert_eq!(bench.device.tsc_deadline(), 0);
        bench.write32(EOI, 0);
        bench.device.set_tsc_deadline(10, 70, GuestNs(6_000));
        assert_eq!(bench.device.acknowledge(), Some(0x30));
        bench.device.set_tsc_deadline(9_000, 0, GuestNs(6_000));
        bench.device.set_tsc_deadline(0, 0, GuestNs(6_000));
        assert_eq!(bench.device.next_event(), None, "zero disarms");
    }

    #[test]
    fn a_masked_timer_interrupts_nobody() {
        let mut bench = Bench::new(Lapic::default());
        bench.write32(LVT_TIMER, 0x1_0030);
        bench.write32(DIVIDE, 0xb);
        bench.write32(INITIAL, 1_000);
        assert_eq!(bench.device.next_event(), None);
        bench.now = GuestNs(2_000);
        bench.write32(LVT_TIMER, 0x30);
        assert_eq!(bench.device.pending(), None);
    }

    #[test]
    fn self_ipis_and_illegal_vectors() {
        let mut bench = Bench::new(Lapic::default());
        bench.write32(ICR, 0x4_0077);
        assert_eq!(bench.device.acknowledge(), Some(0x77));
        bench.write32(ICR, 0x4_0005);
        assert_eq!(bench.read32(0x280), 0);
        bench.write32(0x280, 0);
        assert_eq!(bench.read32(0x280), ESR_SEND_ILLEGAL);
        bench.write32(ICR, 0x4_0400);
        assert!(bench.device.nmi());
    }

    #[test]
    fn a_disabled_apic_passes_the_pic_and_accepts_nothing() {
        let mut bench = Bench::new(Lapic::default());
        assert!(bench.device.passes_pic());
        bench.write32(0x350, 0x1_0700);
        assert!(!bench.device.passes_pic());
        bench.write32(SVR, 0xff);
        assert!(!bench.device.accept(fixed(0x40, false)));
        assert!(bench.device.set_base(APIC_BASE_DEFAULT & !APIC_BASE_ENABLED));
        assert!(bench.device.passes_pic());
        assert_eq!(bench.read32(0x30), u32::MAX);
        assert!(!bench.device.set_base(APIC_BASE_DEFAULT | 1 << 10), "x2APIC");
        assert!(!bench.device.set_base(0xfed0_0000 | APIC_BASE_ENABLED), "another address");
    }

    #[test]
    fn logical_destinations_match_in_both_models() {
        let mut bench = Bench::new(Lapic::default());
        let mut to = |ldr, dfr, destination| {
            bench.write32(0xd0, ldr);
            bench.write32(0xe0, dfr);
            bench.device.accept(Message { logical: true, destination, ..fixed(0x40, false) })
        };
        assert!(to(0x0100_0000, u32::MAX, 0x03));
        assert!(!to(0x0100_0000, u32::MAX, 0x02));
        assert!(to(0x2100_0000, 0x0fff_ffff, 0x23));
        assert!(!to(0x2100_0000, 0x0fff_ffff, 0x13));
    }

    device_contract!(
        lapic_state_is_complete,
        || {
            let mut bench = Bench::new(Lapic::default());
            bench.write32(LVT_TIMER, 0x2_0030);
            bench.write32(DIVIDE, 0x1);
            bench.write32(INITIAL, 777);
            bench.run_to(4_000);
            bench.device.acknowledge();
            bench.device.accept(fixed(0x91, true));
            bench.write32(TPR, 0x20);
            bench
        },
        |bench: &mut Bench<Lapic>| {
            for to in [5_000, 9_000, 20_000] {
                bench.run_to(to);
                for register in [CURRENT, TPR, 0xa0, 0x280, INITIAL] {
                    bench.read32(register);
                }
                let vector = bench.device.acknowledge();
                bench.log.push(u64::from(vector.unwrap_or(0)));
                bench.write32(EOI, 0);
            }
        }
    );
}
