// SPDX-License-Identifier: Apache-2.0
//! Loops for benchmarks: `loop=integer|memory|call|float`, `loop_rounds=N` on the kernel command line or as arguments. Prints a
//! line before and after, and the result, which every engine must agree on.

use chaoscontrol_sdk::guest;
use std::hint::black_box;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let parameter = |name: &str| {
        let given = arguments.iter().find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
        given.map(str::to_owned).or_else(|| guest::parameter(name))
    };
    let name = parameter("loop").unwrap_or_else(|| "integer".to_owned());
    let rounds: u64 = parameter("loop_rounds").and_then(|text| text.parse().ok()).unwrap_or(20_000_000);
    let run: fn(u64) -> u64 = match name.as_str() {
        "integer" => integer,
        "memory" => memory,
        "call" => call,
        "float" => float,
        _ => {
            println!("chaos-loops: loop= must be integer, memory, call or float");
            std::process::exit(2);
        }
    };
    println!("chaos-loops: begin {name} {rounds}");
    let result = run(black_box(rounds));
    println!("chaos-loops: end {result:#x}");
}

/// Adds, shifts, multiplies and branches in registers.
fn integer(rounds: u64) -> u64 {
    let mut state = 1u64;
    for i in 0..rounds {
        state ^= state << 13;
        state ^= state >> 7;
        state = if state & 3 == 0 { state.wrapping_mul(0x9e37_79b9) ^ i } else { state.wrapping_add(i) };
    }
    state
}

/// Loads and stores over 4 MiB.
fn memory(rounds: u64) -> u64 {
    let mut words = vec![0u64; 1 << 19];
    let mask = words.len() - 1;
    let mut at = 1usize;
    for i in 0..rounds {
        at = (at.wrapping_mul(5) + 1) & mask;
        words[at] = words[at].wrapping_add(i);
        let other = (at ^ 0x55) & mask;
        words[other] ^= words[at];
    }
    words.iter().fold(0, |sum, word| sum ^ word)
}

/// Calls and returns: Fibonacci the slow way, until `rounds` calls are spent.
fn call(rounds: u64) -> u64 {
    let mut spent = 0;
    let mut sum = 0u64;
    while spent < rounds {
        sum = sum.wrapping_add(fibonacci(black_box(20)));
        // fib(20) makes 21,891 calls.
        spent += 21_891;
    }
    sum
}

#[inline(never)]
fn fibonacci(n: u64) -> u64 {
    if n < 2 { n } else { fibonacci(black_box(n - 1)) + fibonacci(black_box(n - 2)) }
}

/// SSE2 arithmetic: a logistic map with a square root and a division.
fn float(rounds: u64) -> u64 {
    let mut x = 0.3f64;
    let mut sum = 0.0f64;
    for _ in 0..rounds {
        x = 3.9 * x * (1.0 - x);
        sum += x.sqrt() / (1.0 + x);
    }
    sum.to_bits()
}
