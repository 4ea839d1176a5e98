// SPDX-License-Identifier: AGPL-3.0-or-later
//! Codes of the x87 instructions.

use super::ops::x87::{
    Double, Dword, Single, Word, fbld, fbstp, fcmov, fcom, fcomi, fcompp, fild, fist, fld_double, fld_extended,
    fld_register, fld_single, fst_double, fst_register, fst_single, fstp_extended, fstpnce, ftst, fxch, registers,
    with_memory,
};
use super::ops::x87_control::{
    ffree, fldcw, fldenv, fnclex, fninit, fnop, fnsave, fnstcw, fnstenv, fnstsw, fnstsw_ax, frstor, fwait, move_top,
    nothing,
};
use super::ops::x87_transcendental::{f2xm1, fcos, fpatan, fptan, fsin, fsincos, fyl2x, fyl2xp1};
use super::ops::x87_unary::{fabs, fchs, fld_constant, fprem, frndint, fscale, fsqrt, fxam, fxtract};
use crate::op::Handler;
use iced_x86::Code;

/// The handler of a code of this family.
pub fn lookup(code: Code) -> Option<Handler> {
    arithmetic(code)
        .or_else(|| comparisons(code))
        .or_else(|| moves(code))
        .or_else(|| functions(code))
        .or_else(|| control(code))
}

/// The four operations.
fn arithmetic(code: Code) -> Option<Handler> {
    Some(match code {
        Code::Fadd_st0_sti => registers::<0, false>,
        Code::Fadd_sti_st0 => registers::<0, false>,
        Code::Faddp_sti_st0 => registers::<0, true>,
        Code::Fadd_m32fp => with_memory::<Single, 0>,
        Code::Fadd_m64fp => with_memory::<Double, 0>,
        Code::Fiadd_m16int => with_memory::<Word, 0>,
        Code::Fiadd_m32int => with_memory::<Dword, 0>,
        Code::Fmul_st0_sti => registers::<1, false>,
        Code::Fmul_sti_st0 => registers::<1, false>,
        Code::Fmulp_sti_st0 => registers::<1, true>,
        Code::Fmul_m32fp => with_memory::<Single, 1>,
        Code::Fmul_m64fp => with_memory::<Double, 1>,
        Code::Fimul_m16int => with_memory::<Word, 1>,
        Code::Fimul_m32int => with_memory::<Dword, 1>,
        Code::Fsub_st0_sti => registers::<4, false>,
        Code::Fsub_sti_st0 => registers::<4, false>,
        Code::Fsubp_sti_st0 => registers::<4, true>,
        Code::Fsub_m32fp => with_memory::<Single, 4>,
        Code::Fsub_m64fp => with_memory::<Double, 4>,
        Code::Fisub_m16int => with_memory::<Word, 4>,
        Code::Fisub_m32int => with_memory::<Dword, 4>,
        Code::Fsubr_st0_sti => registers::<5, false>,
        Code::Fsubr_sti_st0 => registers::<5, false>,
        Code::Fsubrp_sti_st0 => registers::<5, true>,
        Code::Fsubr_m32fp => with_memory::<Single, 5>,
        Code::Fsubr_m64fp => with_memory::<Double, 5>,
        Code::Fisubr_m16int => with_memory::<Word, 5>,
        Code::Fisubr_m32int => with_memory::<Dword, 5>,
        Code::Fdiv_st0_sti => registers::<6, false>,
        Code::Fdiv_sti_st0 => registers::<6, false>,
        Code::Fdivp_sti_st0 => registers::<6, true>,
        Code::Fdiv_m32fp => with_memory::<Single, 6>,
        Code::Fdiv_m64fp => with_memory::<Double, 6>,
        Code::Fidiv_m16int => with_memory::<Word, 6>,
        Code::Fidiv_m32int => with_memory::<Dword, 6>,
        Code::Fdivr_st0_sti => registers::<7, false>,
        Code::Fdivr_sti_st0 => registers::<7, false>,
        Code::Fdivrp_sti_st0 => registers::<7, true>,
        Code::Fdivr_m32fp => with_memory::<Single, 7>,
        Code::Fdivr_m64fp => with_memory::<Double, 7>,
        Code::Fidivr_m16int => with_memory::<Word, 7>,
        Code::Fidivr_m32int => with_memory::<Dword, 7>,
        _ => return None,
    })
}

/// Comparisons and conditional moves.
fn comparisons(code: Code) -> Option<Handler> {
    Some(match code {
        Code::Fcom_m32fp => with_memory::<Single, 2>,
        Code::Fcom_m64fp => with_memory::<Double, 2>,
        Code::Ficom_m16int => with_memory::<Word, 2>,
        Code::Ficom_m32int => with_memory::<Dword, 2>,
        Code::Fcom_st0_sti => fcom::<true, 0>,
        Code::Fcom_st0_sti_DCD0 => fcom::<true, 0>,
        Code::Fcomp_m32fp => with_memory::<Single, 3>,
        Code::Fcomp_m64fp => with_memory::<Double, 3>,
        Code::Ficomp_m16int => with_memory::<Word, 3>,
        Code::Ficomp_m32int => with_memory::<Dword, 3>,
        Code::Fcomp_st0_sti => fcom::<true, 1>,
        Code::Fcomp_st0_sti_DCD8 => fcom::<true, 1>,
        Code::Fcomp_st0_sti_DED0 => fcom::<true, 1>,
        Code::Fucom_st0_sti => fcom::<false, 0>,
        Code::Fucomp_st0_sti => fcom::<false, 1>,
        Code::Fcompp => fcompp::<true>,
        Code::Fucompp => fcompp::<false>,
        Code::Ftst => ftst,
        Code::Fcomi_st0_sti => fcomi::<true, false>,
        Code::Fcomip_st0_sti => fcomi::<true, true>,
        Code::Fucomi_st0_sti => fcomi::<false, false>,
        Code::Fucomip_st0_sti => fcomi::<false, true>,
        Code::Fcmovb_st0_sti => fcmov::<0, false>,
        Code::Fcmovnb_st0_sti => fcmov::<0, true>,
        Code::Fcmove_st0_sti => fcmov::<1, false>,
        Code::Fcmovne_st0_sti => fcmov::<1, true>,
        Code::Fcmovbe_st0_sti => fcmov::<2, false>,
        Code::Fcmovnbe_st0_sti => fcmov::<2, true>,
        Code::Fcmovu_st0_sti => fcmov::<3, false>,
        Code::Fcmovnu_st0_sti => fcmov::<3, true>,
        _ => return None,
    })
}

/// Loads, stores and exchanges.
fn moves(code: Code) -> Option<Handler> {
    Some(match code {
        Code::Fld_m32fp => fld_single,
        Code::Fld_m64fp => fld_double,
        Code::Fld_m80fp => fld_extended,
        Code::Fld_sti => fld_register,
        Code::Fbld_m80bcd => fbld,
        Code::Fbstp_m80bcd => fbstp,
        Code::Fst_m32fp => fst_single::<false>,
        Code::Fstp_m32fp => fst_single::<true>,
        Code::Fst_m64fp => fst_double::<false>,
        Code::Fstp_m64fp => fst_double::<true>,
        Code::Fstp_m80fp => fstp_extended,
        Code::Fst_sti => fst_register::<false>,
        Code::Fstpnce_sti => fstpnce,
        Code::Fstp_sti => fst_register::<true>,
        Code::Fstp_sti_DFD0 => fst_register::<true>,
        Code::Fstp_sti_DFD8 => fst_register::<true>,
        Code::Fxch_st0_sti => fxch,
        Code::Fxch_st0_sti_DDC8 => fxch,
        Code::Fxch_st0_sti_DFC8 => fxch,
        Code::Fild_m16int => fild::<u16>,
        Code::Fist_m16int => fist::<u16, false, false>,
        Code::Fistp_m16int => fist::<u16, false, true>,
        Code::Fisttp_m16int => fist::<u16, true, true>,
        Code::Fild_m32int => fild::<u32>,
        Code::Fist_m32int => fist::<u32, false, false>,
        Code::Fistp_m32int => fist::<u32, false, true>,
        Code::Fisttp_m32int => fist::<u32, true, true>,
        Code::Fild_m64int => fild::<u64>,
        Code::Fistp_m64int => fist::<u64, false, true>,
        Code::Fisttp_m64int => fist::<u64, true, true>,
        _ => return None,
    })
}

/// Operations on the top of the stack, and constants.
fn functions(code: Code) -> Option<Handler> {
    Some(match code {
        Code::Fchs => fchs,
        Code::Fabs => fabs,
        Code::Fsqrt => fsqrt,
        Code::Frndint => frndint,
        Code::Fscale => fscale,
        Code::Fxtract => fxtract,
        Code::Fprem => fprem::<false>,
        Code::Fprem1 => fprem::<true>,
        Code::Fxam => fxam,
        Code::Fld1 => fld_constant::<0>,
        Code::Fldl2t => fld_constant::<1>,
        Code::Fldl2e => fld_constant::<2>,
        Code::Fldpi => fld_constant::<3>,
        Code::Fldlg2 => fld_constant::<4>,
        Code::Fldln2 => fld_constant::<5>,
        Code::Fldz => fld_constant::<6>,
        Code::F2xm1 => f2xm1,
        Code::Fyl2x => fyl2x,
        Code::Fptan => fptan,
        Code::Fpatan => fpatan,
        Code::Fyl2xp1 => fyl2xp1,
        Code::Fsincos => fsincos,
        Code::Fsin => fsin,
        Code::Fcos => fcos,
        _ => return None,
    })
}

/// Words, environment, state.
fn control(code: Code) -> Option<Handler> {
    Some(match code {
        Code::Wait => fwait,
        Code::Fnop => fnop,
        Code::Fninit => fninit,
        Code::Fnclex => fnclex,
        Code::Fldcw_m2byte => fldcw,
        Code::Fnstcw_m2byte => fnstcw,
        Code::Fnstsw_m2byte => fnstsw,
        Code::Fnstsw_AX => fnstsw_ax,
        Code::Ffree_sti => ffree::<false>,
        Code::Ffreep_sti => ffree::<true>,
        Code::Fincstp => move_top::<1>,
        Code::Fdecstp => move_top::<7>,
        Code::Fneni => nothing,
        Code::Fndisi => nothing,
        Code::Fnsetpm => nothing,
        Code::Fnstenv_m14byte => fnstenv::<false>,
        Code::Fnstenv_m28byte => fnstenv::<true>,
        Code::Fldenv_m14byte => fldenv::<false>,
        Code::Fldenv_m28byte => fldenv::<true>,
        Code::Fnsave_m94byte => fnsave::<false>,
        Code::Fnsave_m108byte => fnsave::<true>,
        Code::Frstor_m94byte => frstor::<false>,
        Code::Frstor_m108byte => frstor::<true>,
        _ => return None,
    })
}
