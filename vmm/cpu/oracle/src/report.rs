// SPDX-License-Identifier: AGPL-3.0-or-later
//! Cases as text: for people, and to run one again.
//!
//! A case file has one `name=value` a line; what is missing has its default. Lines that start with `#` are comments.

use crate::case::{Case, Fx};
use crate::generate::encode::decode;
use iced_x86::{Formatter, IntelFormatter};
use std::fmt::Write as _;

/// Names of the general registers in encoding order.
pub const GPR: [&str; 16] =
    ["rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15"];

/// The case's instructions in Intel syntax, separated by semicolons.
pub fn disassembly(case: &Case) -> String {
    let mut formatter = IntelFormatter::new();
    let mut text = String::new();
    let mut at = 0;
    while at < case.code_len as usize {
        let instruction = decode(case.bits, &case.code[at..case.code_len as usize], case.rip + at as u64);
        if at > 0 {
            text.push_str("; ");
        }
        formatter.format(&instruction, &mut text);
        if instruction.is_invalid() {
            break;
        }
        at += instruction.len();
    }
    text
}

/// Bytes as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The case as a case file.
pub fn to_text(case: &Case) -> String {
    let empty = Case::empty(case.bits);
    let mut text =
        format!("# {}\nbits={}\nrip={:#x}\ncode={}\n", disassembly(case), case.bits, case.rip, hex(case.code()));
    let mut line = |name: &str, value: String| {
        let _ = writeln!(text, "{name}={value}");
    };
    line("rflags", format!("{:#x}", case.rflags));
    for (name, value) in GPR.iter().zip(case.gpr).filter(|(_, value)| *value != 0) {
        line(name, format!("{value:#x}"));
    }
    for patch in &case.patches[..case.patch_count as usize] {
        line("patch", format!("{:#x}:{}", patch.offset, hex(&patch.bytes[..patch.len as usize])));
    }
    let fx = &case.fx;
    for (name, offset) in [("fcw", 0), ("fsw", 2), ("ftw", 4)] {
        if fx.u16(offset) != empty.fx.u16(offset) {
            line(name, format!("{:#x}", fx.u16(offset)));
        }
    }
    for index in (0..8).filter(|&index| fx.st(index) != (0, 0)) {
        line(&format!("st{index}"), format!("{:#x}:{:#x}", fx.st(index).1, fx.st(index).0));
    }
    if fx.u32(24) != empty.fx.u32(24) {
        line("mxcsr", format!("{:#x}", fx.u32(24)));
    }
    for index in (0..16).filter(|&index| fx.xmm(index) != 0) {
        line(&format!("xmm{index}"), format!("{:#x}", fx.xmm(index)));
    }
    text
}

/// Reads a case file; the error names the line.
pub fn from_text(text: &str) -> Result<Case, String> {
    let mut case = Case::empty(64);
    case.fx = Fx::initial();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
        apply(&mut case, line).ok_or_else(|| format!("case file: line not understood: {line}"))?;
    }
    Ok(case)
}

fn apply(case: &mut Case, line: &str) -> Option<()> {
    let (name, value) = line.split_once('=')?;
    let number = || number(value);
    if let Some(index) = GPR.iter().position(|&register| register == name) {
        case.gpr[index] = number()? as u64;
        return Some(());
    }
    if let Some(index) = indexed(name, "xmm", 16) {
        case.fx.set_xmm(index, number()?);
        return Some(());
    }
    if let Some(index) = indexed(name, "st", 8) {
        let (sign_exponent, significand) = value.split_once(':')?;
        case.fx.set_st(index, self::number(significand)? as u64, self::number(sign_exponent)? as u16);
        return Some(());
    }
    match name {
        "bits" => case.bits = number()? as u32,
        "rip" => case.rip = number()? as u64,
        "rflags" => case.rflags = number()? as u64,
        "code" => case.set_code(&bytes(value)?),
        "fcw" => case.fx.set_u16(0, number()? as u16),
        "fsw" => case.fx.set_u16(2, number()? as u16),
        "ftw" => case.fx.set_u16(4, number()? as u16),
        "mxcsr" => case.fx.set_u32(24, number()? as u32),
        "patch" => {
            let (offset, content) = value.split_once(':')?;
            case.patch(self::number(offset)? as u64, &bytes(content)?);
        }
        _ => return None,
    }
    Some(())
}

fn indexed(name: &str, prefix: &str, bound: usize) -> Option<usize> {
    name.strip_prefix(prefix)?.parse().ok().filter(|&index| index < bound)
}

fn number(text: &str) -> Option<u128> {
    match text.strip_prefix("0x") {
        Some(digits) => u128::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

fn bytes(text: &str) -> Option<Vec<u8>> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(text.get(at..at + 2)?, 16).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_survives_its_text() {
        let mut factory = iced_x86::InstructionInfoFactory::new();
        for index in 0..200 {
            let mut rng = crate::random::stream(7, index);
            let case =
                crate::generate::single(&mut rng, &mut factory, iced_x86::Code::Fadd_m64fp, 64).expect("encodable");
            let text = to_text(&case);
            assert_eq!(to_text(&from_text(&text).expect("readable")), text);
        }
    }
}
