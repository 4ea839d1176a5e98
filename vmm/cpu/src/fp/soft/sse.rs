// SPDX-License-Identifier: AGPL-3.0-or-later
//! 32 and 64-bit arithmetic as SSE does it: MXCSR rounding, DAZ and FTZ, NaN selection, and the exact exception flags.
//!
//! Every function returns the result for masked exceptions and the flags of [`super::flag`]; the caller raises #XM instead
//! when an unmasked flag is among them. Numbers are bit patterns in the low bits of a `u64`. Sources: AMD64 APM vol. 1,
//! 4.8 and vol. 4; Intel SDM vol. 1, 11.5 and appendix E.

use super::flag::{DE, IE, OE, PE, UE, ZE};
use super::{Format, Num, Rounding, arith};

/// MXCSR as the environment of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Env(pub u32);

impl Env {
    /// RC.
    pub fn rounding(self) -> Rounding {
        Rounding::from_bits(self.0 >> 13)
    }

    /// Denormal operands count as zeros.
    pub fn daz(self) -> bool {
        self.0 & 1 << 6 != 0
    }

    /// Tiny results become zeros; only while underflow is masked.
    pub fn ftz(self) -> bool {
        self.0 & 1 << 15 != 0 && self.underflow_masked()
    }

    /// UM.
    pub fn underflow_masked(self) -> bool {
        self.0 & 1 << 11 != 0
    }

    /// True when a round-to-nearest result of normal operands that lies within the normal range may be taken from the host: no
    /// flag but the inexact one can come up, and that is masked.
    fn host_may_compute(self) -> bool {
        const RC: u32 = 3 << 13;
        const PM: u32 = 1 << 12;
        self.0 & (RC | PM) == PM
    }

    /// True when another inexact result changes nothing.
    fn already_inexact(self) -> bool {
        self.0 & PE != 0
    }
}

/// A result and the exception flags it raises.
pub type Flagged = (u64, u32);

/// The two formats.
pub trait Float {
    /// Bits of the exponent field.
    const EXPONENT_BITS: u32;
    /// Bits of the fraction field.
    const FRACTION_BITS: u32;
    /// Precision and exponent range.
    const FORMAT: Format = Format {
        precision: Self::FRACTION_BITS + 1,
        exponent_min: 2 - (1 << (Self::EXPONENT_BITS - 1)),
        exponent_max: (1 << (Self::EXPONENT_BITS - 1)) - 1,
    };
    /// The sign bit.
    const SIGN: u64 = 1 << (Self::EXPONENT_BITS + Self::FRACTION_BITS);
    /// The fraction field.
    const FRACTION: u64 = (1 << Self::FRACTION_BITS) - 1;
    /// Plus infinity: the exponent field.
    const INFINITY: u64 = Self::SIGN - 1 - Self::FRACTION;
    /// The bit that makes a NaN quiet.
    const QUIET: u64 = 1 << (Self::FRACTION_BITS - 1);
    /// The NaN that invalid operations give.
    const DEFAULT_NAN: u64 = Self::SIGN | Self::INFINITY | Self::QUIET;

    /// Host arithmetic, used only where its result is the only correct one.
    fn host(operation: HostOperation, a: u64, b: u64) -> u64;
}

/// What [`Float::host`] computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostOperation {
    /// a + b
    Add,
    /// a - b
    Sub,
    /// a * b
    Mul,
    /// a / b
    Div,
    /// The square root of b.
    Sqrt,
}

/// Single precision.
pub struct F32;
/// Double precision.
pub struct F64;

macro_rules! float {
    ($name:ident, $host:ty, $bits:ty, $exponent:expr, $fraction:expr) => {
        impl Float for $name {
            const EXPONENT_BITS: u32 = $exponent;
            const FRACTION_BITS: u32 = $fraction;

            #[inline(always)]
            fn host(operation: HostOperation, a: u64, b: u64) -> u64 {
                let (a, b) = (<$host>::from_bits(a as $bits), <$host>::from_bits(b as $bits));
                let result = match operation {
                    HostOperation::Add => a + b,
                    HostOperation::Sub => a - b,
                    HostOperation::Mul => a * b,
                    HostOperation::Div => a / b,
                    HostOperation::Sqrt => b.sqrt(),
                };
                u64::from(result.to_bits())
            }
        }
    };
}
float!(F32, f32, u32, 8, 23);
float!(F64, f64, u64, 11, 52);

/// An operand that is no NaN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value {
    /// Signed zero.
    Zero(bool),
    /// Signed infinity.
    Infinity(bool),
    /// Everything else.
    Finite(Num),
}

/// Whether a pattern is a NaN.
#[inline(always)]
pub fn is_nan<F: Float>(a: u64) -> bool {
    a & !F::SIGN > F::INFINITY
}

/// Whether a pattern is a signaling NaN.
#[inline(always)]
pub fn is_signaling<F: Float>(a: u64) -> bool {
    is_nan::<F>(a) && a & F::QUIET == 0
}

/// Whether a pattern is subnormal.
#[inline(always)]
fn is_denormal<F: Float>(a: u64) -> bool {
    a & F::INFINITY == 0 && a & F::FRACTION != 0
}

/// Replaces a denormal by zero when DAZ says so.
#[inline(always)]
pub fn apply_daz<F: Float>(a: u64, env: Env) -> u64 {
    if env.daz() && is_denormal::<F>(a) { a & F::SIGN } else { a }
}

/// Takes a pattern apart that is no NaN.
pub fn unpack<F: Float>(a: u64) -> Value {
    let negative = a & F::SIGN != 0;
    let field = ((a & F::INFINITY) >> F::FRACTION_BITS) as i32;
    let fraction = a & F::FRACTION;
    if a & F::INFINITY == F::INFINITY {
        return Value::Infinity(negative);
    }
    if field == 0 {
        if fraction == 0 {
            return Value::Zero(negative);
        }
        let significand = u128::from(fraction) << (127 - F::FRACTION_BITS);
        return Value::Finite(Num::normalize(negative, F::FORMAT.exponent_min, significand));
    }
    let significand = u128::from(fraction | 1 << F::FRACTION_BITS) << (127 - F::FRACTION_BITS);
    Value::Finite(Num { negative, exponent: field - F::FORMAT.exponent_max, significand })
}

/// DE, if an operand is denormal (after DAZ).
#[inline(always)]
fn denormal_flag<F: Float>(a: u64, b: u64) -> u32 {
    if is_denormal::<F>(a) || is_denormal::<F>(b) { DE } else { 0 }
}

/// A zero of the given sign.
#[inline(always)]
pub fn zero<F: Float>(negative: bool) -> u64 {
    if negative { F::SIGN } else { 0 }
}

/// An infinity of the given sign.
#[inline(always)]
fn infinity<F: Float>(negative: bool) -> u64 {
    F::INFINITY | zero::<F>(negative)
}

/// Rounds a value into the format with all that MXCSR asks for.
pub fn pack<F: Float>(value: Num, env: Env) -> Flagged {
    let rounding = env.rounding();
    let rounded = value.round(F::FORMAT, rounding);
    let sign = zero::<F>(value.negative);
    let inexact = if rounded.inexact { PE } else { 0 };
    if rounded.overflow {
        let to_infinity = match rounding {
            Rounding::Nearest => true,
            Rounding::Down => value.negative,
            Rounding::Up => !value.negative,
            Rounding::Zero => false,
        };
        // Without masks the flag PE tells only what the delivered significand lost.
        let pe = if env.0 & OE << 7 != 0 { PE } else { inexact };
        return (sign | (F::INFINITY - u64::from(!to_infinity)), OE | pe);
    }
    if rounded.tiny {
        if env.ftz() {
            return (sign, UE | PE);
        }
        if !env.underflow_masked() {
            let lost = value.round_unbounded(F::FORMAT.precision, rounding).inexact;
            return (sign | rounded.significand, UE | if lost { PE } else { 0 });
        }
        return (sign | rounded.significand, if rounded.inexact { UE | PE } else { 0 });
    }
    // A subnormal significand has no leading one, and rounding up to the leading one makes it the smallest normal number.
    let field = (rounded.exponent + F::FORMAT.exponent_max - 1) as u64;
    (sign | ((field << F::FRACTION_BITS) + rounded.significand), inexact)
}

/// The NaN that two operands give, if one is a NaN: the first NaN, made quiet.
#[inline(always)]
fn nan_of<F: Float>(a: u64, b: u64) -> Option<Flagged> {
    if !is_nan::<F>(a) && !is_nan::<F>(b) {
        return None;
    }
    let invalid = if is_signaling::<F>(a) || is_signaling::<F>(b) { IE } else { 0 };
    Some((F::QUIET | if is_nan::<F>(a) { a } else { b }, invalid))
}

/// Host result, if it cannot differ from ours: normal operands, and a result well inside the normal range. The inexact flag is
/// found from the significands, and only while it is not set already.
#[inline(always)]
fn fast<F: Float>(operation: HostOperation, a: u64, b: u64, env: Env) -> Option<Flagged> {
    // An exponent field of 1 to max - 1 is normal; the result keeps one binade away from both ends.
    let normal = |x: u64| (x & F::INFINITY).wrapping_sub(1 << F::FRACTION_BITS) < F::INFINITY - (1 << F::FRACTION_BITS);
    if !env.host_may_compute() || !normal(a) || !normal(b) {
        return None;
    }
    let result = F::host(operation, a, b);
    let inside = (result & F::INFINITY).wrapping_sub(2 << F::FRACTION_BITS) < F::INFINITY - (3 << F::FRACTION_BITS);
    if !inside {
        return None;
    }
    let lost = !env.already_inexact() && inexact::<F>(operation, a, b, result);
    Some((result, if lost { PE } else { 0 }))
}

/// Whether a normal result of normal operands was rounded.
fn inexact<F: Float>(operation: HostOperation, a: u64, b: u64, result: u64) -> bool {
    let significand = |x: u64| u128::from(x & F::FRACTION | 1 << F::FRACTION_BITS);
    let odd = |x: u128| x >> x.trailing_zeros();
    match operation {
        // The error of a sum is a number of the format, and these steps compute it without error (Knuth's TwoSum).
        HostOperation::Add | HostOperation::Sub => {
            let b = if operation == HostOperation::Sub { b ^ F::SIGN } else { b };
            let host = |operation, a, b| F::host(operation, a, b);
            let b_part = host(HostOperation::Sub, result, a);
            let a_part = host(HostOperation::Sub, result, b_part);
            let a_lost = host(HostOperation::Sub, a, a_part);
            let b_lost = host(HostOperation::Sub, b, b_part);
            (a_lost | b_lost) & !F::SIGN != 0 && host(HostOperation::Add, a_lost, b_lost) & !F::SIGN != 0
        }
        HostOperation::Mul => odd(significand(a) * significand(b)) >> F::FORMAT.precision != 0,
        HostOperation::Div => odd(significand(result) * significand(b)) != odd(significand(a)),
        HostOperation::Sqrt => {
            let root = odd(significand(result));
            // The exponent's parity moves the square by one bit, which `odd` takes away again.
            odd(root * root) != odd(significand(b))
        }
    }
}

/// a + b
#[inline]
pub fn add<F: Float>(a: u64, b: u64, env: Env) -> Flagged {
    fast::<F>(HostOperation::Add, a, b, env).unwrap_or_else(|| add_exact::<F>(a, b, 0, env))
}

/// a - b
#[inline]
pub fn sub<F: Float>(a: u64, b: u64, env: Env) -> Flagged {
    fast::<F>(HostOperation::Sub, a, b, env).unwrap_or_else(|| add_exact::<F>(a, b, F::SIGN, env))
}

/// a + b with the sign of b flipped by `flip`, unless b is a NaN.
#[inline(never)]
fn add_exact<F: Float>(a: u64, b: u64, flip: u64, env: Env) -> Flagged {
    let (a, b) = (apply_daz::<F>(a, env), apply_daz::<F>(b, env));
    if let Some(nan) = nan_of::<F>(a, b) {
        return nan;
    }
    let denormal = denormal_flag::<F>(a, b);
    let (result, flags) = match (unpack::<F>(a), unpack::<F>(b ^ flip)) {
        (Value::Infinity(x), Value::Infinity(y)) if x != y => return (F::DEFAULT_NAN, IE),
        (Value::Infinity(sign), _) | (_, Value::Infinity(sign)) => (infinity::<F>(sign), 0),
        (Value::Zero(x), Value::Zero(y)) => (zero::<F>(sign_of_zero_sum(x, y, env.rounding())), 0),
        (Value::Finite(x), Value::Zero(_)) => pack::<F>(x, env),
        (Value::Zero(_), Value::Finite(y)) => pack::<F>(y, env),
        (Value::Finite(x), Value::Finite(y)) => match arith::add(x, y) {
            Some(sum) => pack::<F>(sum, env),
            None => (zero::<F>(env.rounding() == Rounding::Down), 0),
        },
    };
    (result, flags | denormal)
}

/// The sign of a sum of two zeros.
pub fn sign_of_zero_sum(a: bool, b: bool, rounding: Rounding) -> bool {
    if a == b { a } else { rounding == Rounding::Down }
}

/// a * b
#[inline]
pub fn mul<F: Float>(a: u64, b: u64, env: Env) -> Flagged {
    fast::<F>(HostOperation::Mul, a, b, env).unwrap_or_else(|| mul_exact::<F>(a, b, env))
}

#[inline(never)]
fn mul_exact<F: Float>(a: u64, b: u64, env: Env) -> Flagged {
    let (a, b) = (apply_daz::<F>(a, env), apply_daz::<F>(b, env));
    if let Some(nan) = nan_of::<F>(a, b) {
        return nan;
    }
    let denormal = denormal_flag::<F>(a, b);
    let negative = (a ^ b) & F::SIGN != 0;
    let (result, flags) = match (unpack::<F>(a), unpack::<F>(b)) {
        (Value::Infinity(_), Value::Zero(_)) | (Value::Zero(_), Value::Infinity(_)) => return (F::DEFAULT_NAN, IE),
        (Value::Infinity(_), _) | (_, Value::Infinity(_)) => (infinity::<F>(negative), 0),
        (Value::Zero(_), _) | (_, Value::Zero(_)) => (zero::<F>(negative), 0),
        (Value::Finite(x), Value::Finite(y)) => pack::<F>(arith::mul(x, y), env),
    };
    (result, flags | denormal)
}

/// a / b
#[inline]
pub fn div<F: Float>(a: u64, b: u64, env: Env) -> Flagged {
    fast::<F>(HostOperation::Div, a, b, env).unwrap_or_else(|| div_exact::<F>(a, b, env))
}

#[inline(never)]
fn div_exact<F: Float>(a: u64, b: u64, env: Env) -> Flagged {
    let (a, b) = (apply_daz::<F>(a, env), apply_daz::<F>(b, env));
    if let Some(nan) = nan_of::<F>(a, b) {
        return nan;
    }
    let denormal = denormal_flag::<F>(a, b);
    let negative = (a ^ b) & F::SIGN != 0;
    let (result, flags) = match (unpack::<F>(a), unpack::<F>(b)) {
        (Value::Infinity(_), Value::Infinity(_)) | (Value::Zero(_), Value::Zero(_)) => return (F::DEFAULT_NAN, IE),
        (Value::Infinity(_), _) => (infinity::<F>(negative), 0),
        (_, Value::Infinity(_)) | (Value::Zero(_), _) => (zero::<F>(negative), 0),
        // Division by zero comes before the denormal operand.
        (Value::Finite(_), Value::Zero(_)) => return (infinity::<F>(negative), ZE),
        (Value::Finite(x), Value::Finite(y)) => pack::<F>(arith::div(x, y), env),
    };
    (result, flags | denormal)
}

/// The square root.
#[inline]
pub fn sqrt<F: Float>(a: u64, env: Env) -> Flagged {
    if a & F::SIGN == 0
        && let Some(result) = fast::<F>(HostOperation::Sqrt, a, a, env)
    {
        return result;
    }
    sqrt_exact::<F>(a, env)
}

#[inline(never)]
fn sqrt_exact<F: Float>(a: u64, env: Env) -> Flagged {
    let a = apply_daz::<F>(a, env);
    if let Some(nan) = nan_of::<F>(a, a) {
        return nan;
    }
    match unpack::<F>(a) {
        Value::Zero(_) => (a, 0),
        _ if a & F::SIGN != 0 => (F::DEFAULT_NAN, IE),
        Value::Infinity(_) => (a, 0),
        Value::Finite(x) => {
            let (result, flags) = pack::<F>(arith::sqrt(x), env);
            (result, flags | denormal_flag::<F>(a, a))
        }
    }
}

/// A key that orders patterns (no NaNs) as numbers; both zeros have the same key.
fn order_key<F: Float>(a: u64) -> i64 {
    let magnitude = (a & !F::SIGN) as i64;
    if a & F::SIGN != 0 { -magnitude } else { magnitude }
}

/// How two numbers compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relation {
    /// a < b
    Less,
    /// a = b
    Equal,
    /// a > b
    Greater,
    /// One is a NaN.
    Unordered,
}

/// Compares; `quiet_invalid` says whether a quiet NaN is invalid, too (COMISx, and CMPxx with an ordered predicate).
pub fn compare<F: Float>(a: u64, b: u64, quiet_invalid: bool, env: Env) -> (Relation, u32) {
    let (a, b) = (apply_daz::<F>(a, env), apply_daz::<F>(b, env));
    if is_nan::<F>(a) || is_nan::<F>(b) {
        let invalid = quiet_invalid || is_signaling::<F>(a) || is_signaling::<F>(b);
        return (Relation::Unordered, if invalid { IE } else { 0 });
    }
    let relation = match order_key::<F>(a).cmp(&order_key::<F>(b)) {
        std::cmp::Ordering::Less => Relation::Less,
        std::cmp::Ordering::Equal => Relation::Equal,
        std::cmp::Ordering::Greater => Relation::Greater,
    };
    (relation, denormal_flag::<F>(a, b))
}

/// MIN (`greater` false) or MAX: the second operand when the two are equal (also -0 and +0) or one is a NaN.
pub fn min_max<F: Float>(a: u64, b: u64, greater: bool, env: Env) -> Flagged {
    let (relation, flags) = compare::<F>(a, b, true, env);
    let wanted = if greater { Relation::Greater } else { Relation::Less };
    (apply_daz::<F>(if relation == wanted { a } else { b }, env), flags)
}

/// CMPPS and its like: predicates 0 to 7.
pub fn predicate<F: Float>(a: u64, b: u64, number: u8, env: Env) -> (bool, u32) {
    // LT, LE, NLT and NLE are invalid on quiet NaNs, EQ, UNORD, NEQ and ORD are not.
    let (relation, flags) = compare::<F>(a, b, matches!(number & 3, 1 | 2), env);
    let holds = match number & 3 {
        0 => relation == Relation::Equal,
        1 => relation == Relation::Less,
        2 => matches!(relation, Relation::Less | Relation::Equal),
        _ => relation == Relation::Unordered,
    };
    (holds != (number & 4 != 0), flags)
}
