// SPDX-License-Identifier: AGPL-3.0-or-later
//! Far JMP, CALL and RET, call gates of long mode, IRET, far pointer loads.

use crate::core_state::{Core, vector};
use crate::flags::bit;
use crate::int::branch::is_canonical;
use crate::int::stack::Stack;
use crate::op::{Handler, Op, Step, Trap, attr};
use crate::segment::{Descriptor, desc, error_of, is_null, null_stack};
use crate::state::{Segment, seg};
use crate::table::Entry;
use crate::tlb::Privilege;
use crate::width::Width;
use iced_x86::Code;

const FAMILY: &str = "far";
const CALL_GATE: u16 = 12;
const TSS_RSP0: u64 = 4;

impl Core {
    fn gp(&mut self, selector: u16) -> Trap {
        self.fault_code(vector::GP, error_of(selector))
    }

    /// The L bit counts in long mode only.
    fn is_long_code(&self, descriptor: &Descriptor) -> bool {
        self.in_long_mode() && descriptor.has(desc::LONG)
    }

    /// Long mode refuses L and D together.
    fn contradicts(&self, descriptor: &Descriptor) -> bool {
        self.in_long_mode() && descriptor.has(desc::LONG | desc::BIG)
    }

    /// Far JMP, CALL, RET and IRET of real mode: the target must lie inside the limit that CS has.
    fn check_real_target(&mut self, target: u64) -> Step {
        if target <= u64::from(self.segments[seg::CS].limit) { Ok(()) } else { Err(self.fault_code(vector::GP, 0)) }
    }

    fn enter_real_code(&mut self, selector: u16, target: u64) {
        self.rip = target;
        let cs = self.real_segment(seg::CS, selector);
        self.set_code_and_stack(cs, None);
    }

    /// The instruction pointer must be canonical for 64-bit code, else inside the segment.
    fn check_entry(&mut self, descriptor: &Descriptor, target: u64) -> Step {
        let inside = if self.is_long_code(descriptor) {
            is_canonical(target)
        } else {
            target <= u64::from(descriptor.segment(0).limit)
        };
        if inside { Ok(()) } else { Err(self.fault_code(vector::GP, 0)) }
    }

    /// Checks a code segment and then the target in it for a direct far transfer, which keeps the CPL.
    fn direct_code(&mut self, descriptor: &Descriptor, selector: u16, target: u64) -> Result<Segment, Trap> {
        let cpl = self.cpl();
        let allowed = if descriptor.is_conforming_code() {
            descriptor.dpl() <= cpl
        } else {
            (selector & 3) as u8 <= cpl && descriptor.dpl() == cpl
        };
        if !descriptor.is_code() || !allowed || self.contradicts(descriptor) {
            return Err(self.gp(selector));
        }
        if !descriptor.has(desc::PRESENT) {
            return Err(self.fault_code(vector::NP, error_of(selector)));
        }
        self.check_entry(descriptor, target)?;
        self.mark_accessed(descriptor)?;
        let mut cs = descriptor.segment(selector);
        cs.selector = (selector & !3) | u16::from(cpl);
        Ok(cs)
    }

    /// Checks a 64-bit call gate and reads the code segment it leads to.
    fn gate_target(&mut self, selector: u16) -> Result<(Descriptor, u16, u64), Trap> {
        let gate = self.system_descriptor(selector, vector::GP)?;
        let lowest = self.cpl().max((selector & 3) as u8);
        let extended_type = gate.high >> 40 & 0x1f;
        if gate.system_type() != CALL_GATE || lowest > gate.dpl() || extended_type != 0 {
            return Err(self.gp(selector));
        }
        if !gate.has(desc::PRESENT) {
            return Err(self.fault_code(vector::NP, error_of(selector)));
        }
        let code = (gate.low >> 16) as u16;
        let target = (gate.low & 0xffff) | (gate.low >> 48) << 16 | gate.high << 32;
        if is_null(code) {
            return Err(self.fault_code(vector::GP, 0));
        }
        let descriptor = self.descriptor(code, vector::GP)?;
        let long = descriptor.has(desc::LONG) && !descriptor.has(desc::BIG);
        if !descriptor.is_code() || descriptor.dpl() > self.cpl() || !long {
            return Err(self.gp(code));
        }
        if !descriptor.has(desc::PRESENT) {
            return Err(self.fault_code(vector::NP, error_of(code)));
        }
        if !is_canonical(target) {
            return Err(self.fault_code(vector::GP, 0));
        }
        Ok((descriptor, code, target))
    }

    fn far_jump(&mut self, selector: u16, target: u64) -> Step {
        if self.in_real_mode() {
            self.check_real_target(target)?;
            self.enter_real_code(selector, target);
            return Ok(());
        }
        if is_null(selector) {
            return Err(self.fault_code(vector::GP, 0));
        }
        let descriptor = self.descriptor(selector, vector::GP)?;
        if descriptor.is_system() && !self.in_long_mode() {
            return self.legacy_gate_jump(selector);
        }
        let (cs, target) = if descriptor.is_system() {
            let (code, selector, target) = self.gate_target(selector)?;
            if !code.is_conforming_code() && code.dpl() != self.cpl() {
                return Err(self.gp(selector));
            }
            self.mark_accessed(&code)?;
            let mut cs = code.segment(selector);
            cs.selector = (selector & !3) | u16::from(self.cpl());
            (cs, target)
        } else {
            (self.direct_code(&descriptor, selector, target)?, target)
        };
        self.rip = target;
        self.set_code_and_stack(cs, None);
        Ok(())
    }

    fn far_call<T: Width>(&mut self, op: &Op, selector: u16, target: u64) -> Step {
        let cs = if self.in_real_mode() {
            self.check_real_target(target)?;
            self.real_segment(seg::CS, selector)
        } else {
            if is_null(selector) {
                return Err(self.fault_code(vector::GP, 0));
            }
            let descriptor = self.descriptor(selector, vector::GP)?;
            if descriptor.is_system() && !self.in_long_mode() {
                return self.legacy_gate_call(op, selector);
            }
            if descriptor.is_system() {
                return self.gate_call(op, selector);
            }
            self.direct_code(&descriptor, selector, target)?
        };
        let mut stack = self.stack(op.has(attr::LONG));
        self.push_on(&mut stack, T::cut(self.segments[seg::CS].selector.into()))?;
        self.push_on(&mut stack, T::cut(op.next_ip))?;
        self.set_stack(stack);
        self.rip = target;
        self.set_code_and_stack(cs, None);
        Ok(())
    }

    /// A call through a 64-bit gate: pushes 8-byte values, on the stack of the new privilege if it is another.
    fn gate_call(&mut self, op: &Op, selector: u16) -> Step {
        let (descriptor, code, target) = self.gate_target(selector)?;
        let cpl = self.cpl();
        let new_cpl = if descriptor.is_conforming_code() { cpl } else { descriptor.dpl() };
        let old = (self.segments[seg::SS].selector, self.gpr[4], self.segments[seg::CS].selector);
        let mut frame = vec![u64::from(old.2), op.next_ip];
        let mut rsp = self.gpr[4];
        if new_cpl < cpl {
            rsp = self.tss_stack(TSS_RSP0 + u64::from(new_cpl) * 8)?;
            frame.splice(0..0, [u64::from(old.0), old.1]);
        }
        let privilege = if new_cpl == 3 { Privilege::User } else { Privilege::Supervisor };
        let rsp = self.as_privilege(privilege, |core| {
            for value in frame {
                rsp = rsp.wrapping_sub(8);
                core.write(rsp, seg::SS as u8, value)?;
            }
            Ok(rsp)
        })?;
        self.mark_accessed(&descriptor)?;
        self.gpr[4] = rsp;
        self.rip = target;
        let mut cs = descriptor.segment(code);
        cs.selector = (code & !3) | u16::from(new_cpl);
        self.set_code_and_stack(cs, (new_cpl < cpl).then(|| null_stack(u16::from(new_cpl))));
        Ok(())
    }

    /// Checks CS for RETF and IRET.
    fn return_code(&mut self, selector: u16) -> Result<Descriptor, Trap> {
        if is_null(selector) {
            return Err(self.fault_code(vector::GP, 0));
        }
        let descriptor = self.descriptor(selector, vector::GP)?;
        let rpl = (selector & 3) as u8;
        let allowed = if descriptor.is_conforming_code() { descriptor.dpl() <= rpl } else { descriptor.dpl() == rpl };
        if !descriptor.is_code() || rpl < self.cpl() || !allowed || self.contradicts(&descriptor) {
            return Err(self.gp(selector));
        }
        if !descriptor.has(desc::PRESENT) {
            return Err(self.fault_code(vector::NP, error_of(selector)));
        }
        Ok(descriptor)
    }

    /// Checks SS for a return to another privilege (or any IRET in 64-bit mode). Null is allowed to 64-bit code below CPL 3.
    fn return_stack(&mut self, code: &Descriptor, selector: u16, rpl: u8) -> Result<Segment, Trap> {
        if !is_null(selector) {
            return self.present_stack_segment(selector, rpl, vector::GP);
        }
        if self.is_long_code(code) && rpl != 3 && (selector & 3) as u8 == rpl {
            return Ok(null_stack(selector));
        }
        Err(self.fault_code(vector::GP, 0))
    }

    /// Data segments that the new, outer privilege may not use become null.
    fn drop_inner_segments(&mut self) {
        let cpl = self.cpl();
        for register in [seg::ES, seg::DS, seg::FS, seg::GS] {
            let segment = &mut self.segments[register];
            let conforming = segment.attributes & (desc::CODE | desc::CONFORMING) == desc::CODE | desc::CONFORMING;
            let dpl = (segment.attributes >> desc::DPL_SHIFT & 3) as u8;
            if is_null(segment.selector) {
                // It loses its RPL and keeps its base.
                segment.selector = 0;
            } else if !conforming && dpl < cpl {
                *segment = Segment::default();
            }
        }
        self.update_segment_bases();
    }

    /// Makes a return real: the stack pointer of an outer privilege is cut to its stack's size.
    fn finish_return(&mut self, code: &Descriptor, selector: u16, rip: u64, outer: Option<(Segment, u64)>) -> Step {
        self.mark_accessed(code)?;
        let was = self.cpl();
        let cs = code.segment(selector);
        self.rip = rip;
        self.set_code_and_stack(cs, outer.map(|(ss, _)| ss));
        if let Some((_, rsp)) = outer {
            let mut stack = self.stack(self.is_long_code(code));
            stack.pointer = rsp;
            self.set_stack(stack);
        }
        if self.cpl() > was {
            self.drop_inner_segments();
        }
        Ok(())
    }
}

fn far_return<T: Width>(core: &mut Core, op: &Op) -> Step {
    let mut stack = core.stack(op.has(attr::LONG));
    let rip = core.pop_from::<T>(&mut stack)?.zx();
    let selector = core.pop_from::<T>(&mut stack)?.zx() as u16;
    if core.in_real_mode() {
        core.check_real_target(rip)?;
        stack.pointer = stack.pointer.wrapping_add(op.imm);
        core.set_stack(stack);
        core.enter_real_code(selector, rip);
        return Ok(());
    }
    let code = core.return_code(selector)?;
    stack.pointer = stack.pointer.wrapping_add(op.imm);
    let rpl = (selector & 3) as u8;
    if rpl == core.cpl() {
        core.check_entry(&code, rip)?;
        core.mark_accessed(&code)?;
        core.set_stack(stack);
        return core.finish_return(&code, selector, rip, None);
    }
    let rsp = core.pop_from::<T>(&mut stack)?.zx();
    let ss = core.pop_from::<T>(&mut stack)?.zx() as u16;
    let ss = core.return_stack(&code, ss, rpl)?;
    core.check_entry(&code, rip)?;
    core.finish_return(&code, selector, rip, Some((ss, rsp.wrapping_add(op.imm))))
}

/// IRET in real mode: all flags but the virtual ones are the popped ones.
fn real_iret<T: Width>(core: &mut Core) -> Step {
    let mut stack = core.stack(false);
    let rip = core.pop_from::<T>(&mut stack)?.zx();
    let selector = core.pop_from::<T>(&mut stack)?.zx() as u16;
    let flags = core.pop_from::<T>(&mut stack)?.zx();
    core.check_real_target(rip)?;
    let kept = if T::BITS > 16 { bit::VM | bit::VIF | bit::VIP } else { !0xffff };
    core.set_stack(stack);
    core.enter_real_code(selector, rip);
    core.set_rflags((core.rflags() & kept) | (flags & !kept));
    core.nmi_blocked = false;
    Ok(())
}

fn iret<T: Width>(core: &mut Core, op: &Op) -> Step {
    if core.in_real_mode() {
        return real_iret::<T>(core);
    }
    if core.system_flags & bit::NT != 0 {
        // A nested task returns to the one before it, which long mode does not have.
        return Err(if core.in_long_mode() { core.fault_code(vector::GP, 0) } else { core.unsupported_mode() });
    }
    let long = op.has(attr::LONG);
    let mut stack = core.stack(long);
    let rip = core.pop_from::<T>(&mut stack)?.zx();
    let selector = core.pop_from::<T>(&mut stack)?.zx() as u16;
    let flags = core.pop_from::<T>(&mut stack)?.zx();
    if flags & bit::VM != 0 && T::BITS > 16 && core.cpl() == 0 && !core.in_long_mode() {
        return Err(core.unsupported_mode());
    }
    let rpl = (selector & 3) as u8;
    let code = core.return_code(selector)?;
    let outer = iret_stack::<T>(core, &mut stack, &code, rpl, long)?;
    core.check_entry(&code, rip)?;
    let mut writable = bit::STATUS | bit::TF | bit::DF | bit::NT | core.privileged_flags();
    if T::BITS > 16 {
        writable |= bit::RF | bit::AC | bit::ID;
    }
    let flags = (core.rflags() & !writable) | (flags & writable);
    core.mark_accessed(&code)?;
    if outer.is_none() {
        core.set_stack(stack);
    }
    core.finish_return(&code, selector, rip, outer)?;
    core.set_rflags(flags);
    core.nmi_blocked = false;
    Ok(())
}

/// 64-bit mode always pops SS and RSP; compatibility mode only when it returns to another privilege.
fn iret_stack<T: Width>(
    core: &mut Core,
    stack: &mut Stack,
    code: &Descriptor,
    rpl: u8,
    long: bool,
) -> Result<Option<(Segment, u64)>, Trap> {
    if !long && rpl == core.cpl() {
        return Ok(None);
    }
    let rsp = core.pop_from::<T>(stack)?.zx();
    let ss = core.pop_from::<T>(stack)?.zx() as u16;
    Ok(Some((core.return_stack(code, ss, rpl)?, rsp)))
}

/// The selector that follows an offset of `T` in memory, and the offset.
fn far_pointer<T: Width>(core: &mut Core, op: &Op) -> Result<(u16, u64), Trap> {
    let address = core.linear(op, T::BYTES + 2, false)?;
    let offset = core.read::<T>(address, op.segment)?.zx();
    let selector = core.read::<u16>(address.wrapping_add(T::BYTES), op.segment)?;
    Ok((selector, offset))
}

fn jmp_mem<T: Width>(core: &mut Core, op: &Op) -> Step {
    let (selector, target) = far_pointer::<T>(core, op)?;
    core.far_jump(selector, target)
}

fn jmp_immediate(core: &mut Core, op: &Op) -> Step {
    core.far_jump((op.imm >> 32) as u16, op.imm & 0xffff_ffff)
}

fn call_mem<T: Width>(core: &mut Core, op: &Op) -> Step {
    let (selector, target) = far_pointer::<T>(core, op)?;
    core.far_call::<T>(op, selector, target)
}

fn call_immediate<T: Width>(core: &mut Core, op: &Op) -> Step {
    core.far_call::<T>(op, (op.imm >> 32) as u16, op.imm & 0xffff_ffff)
}

/// LES, LSS, LDS, LFS, LGS.
fn load_pointer<const REGISTER: usize, T: Width>(core: &mut Core, op: &Op) -> Step {
    let (selector, offset) = far_pointer::<T>(core, op)?;
    core.load_segment(REGISTER, selector)?;
    core.set_reg(op.dst, T::cut(offset));
    Ok(())
}

/// Claims this family's codes.
pub(crate) fn lookup(code: Code) -> Option<Entry> {
    let handler: Handler = match code {
        Code::Jmp_m1616 => jmp_mem::<u16>,
        Code::Jmp_m1632 => jmp_mem::<u32>,
        Code::Jmp_m1664 => jmp_mem::<u64>,
        Code::Jmp_ptr1616 | Code::Jmp_ptr1632 => jmp_immediate,
        Code::Call_m1616 => call_mem::<u16>,
        Code::Call_m1632 => call_mem::<u32>,
        Code::Call_m1664 => call_mem::<u64>,
        Code::Call_ptr1616 => call_immediate::<u16>,
        Code::Call_ptr1632 => call_immediate::<u32>,
        Code::Retfw | Code::Retfw_imm16 => far_return::<u16>,
        Code::Retfd | Code::Retfd_imm16 => far_return::<u32>,
        Code::Retfq | Code::Retfq_imm16 => far_return::<u64>,
        Code::Iretw => iret::<u16>,
        Code::Iretd => iret::<u32>,
        Code::Iretq => iret::<u64>,
        Code::Les_r16_m1616 => load_pointer::<{ seg::ES }, u16>,
        Code::Les_r32_m1632 => load_pointer::<{ seg::ES }, u32>,
        Code::Lds_r16_m1616 => load_pointer::<{ seg::DS }, u16>,
        Code::Lds_r32_m1632 => load_pointer::<{ seg::DS }, u32>,
        Code::Lss_r16_m1616 => load_pointer::<{ seg::SS }, u16>,
        Code::Lss_r32_m1632 => load_pointer::<{ seg::SS }, u32>,
        Code::Lss_r64_m1664 => load_pointer::<{ seg::SS }, u64>,
        Code::Lfs_r16_m1616 => load_pointer::<{ seg::FS }, u16>,
        Code::Lfs_r32_m1632 => load_pointer::<{ seg::FS }, u32>,
        Code::Lfs_r64_m1664 => load_pointer::<{ seg::FS }, u64>,
        Code::Lgs_r16_m1616 => load_pointer::<{ seg::GS }, u16>,
        Code::Lgs_r32_m1632 => load_pointer::<{ seg::GS }, u32>,
        Code::Lgs_r64_m1664 => load_pointer::<{ seg::GS }, u64>,
        _ => return None,
    };
    Entry::one(FAMILY, handler)
}
