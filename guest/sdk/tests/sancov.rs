// SPDX-License-Identifier: Apache-2.0
//! What instrumented code calls, as the compiler would call it, and the window that it ends up in.
#![cfg(target_arch = "x86_64")]

use chaoscontrol_protocol::layout::{COVERAGE_BYTES, COVERAGE_OFFSET};
use chaoscontrol_protocol::{DOORBELL_BYTES, WINDOW_BYTES, host};
use chaoscontrol_sdk::{Window, attach};

const SLOTS: u32 = COVERAGE_BYTES;

unsafe extern "C" {
    fn __sanitizer_cov_trace_pc_guard_init(start: *mut u32, stop: *mut u32);
    fn __sanitizer_cov_trace_pc_guard(guard: *const u32);
}

fn number(guards: &mut [u32]) {
    let range = guards.as_mut_ptr_range();
    // SAFETY: a whole range of guards.
    unsafe { __sanitizer_cov_trace_pc_guard_init(range.start, range.end) };
}

fn pass(guard: &u32, times: u32) {
    for _ in 0..times {
        // SAFETY: a guard.
        unsafe { __sanitizer_cov_trace_pc_guard(guard) };
    }
}

/// One test: a process has one map.
#[test]
fn edges_are_counted_before_and_after_the_window_is_there_and_saturate() {
    let mut guards = [0u32; 100];
    pass(&guards[7], 1);
    number(&mut guards);
    let numbered = guards;
    assert!(numbered.iter().all(|guard| (1..=SLOTS).contains(guard)));
    assert!(numbered.windows(2).all(|two| two[1] == two[0] % SLOTS + 1), "edges of one module have slots of their own");
    number(&mut guards);
    assert_eq!(guards, numbered, "a module is numbered once, however many of its object files ask for it");
    // More edges than slots: some share one, and all have one.
    let mut many = vec![0u32; SLOTS as usize + 50];
    number(&mut many);
    assert!(many.iter().all(|guard| (1..=SLOTS).contains(guard)) && many[0] == many[SLOTS as usize]);

    pass(&guards[3], 2);
    // Leaked on purpose: a window stays for as long as the program runs.
    let region: &'static mut [u64] =
        Box::leak(vec![0u64; (DOORBELL_BYTES + WINDOW_BYTES) as usize / 8].into_boxed_slice());
    let region: *mut u8 = region.as_mut_ptr().cast();
    // SAFETY: the window lies behind the doorbell page.
    let bytes = unsafe { std::slice::from_raw_parts_mut(region.add(DOORBELL_BYTES as usize), WINDOW_BYTES as usize) };
    host::initialize(bytes);
    let slot = |guard: u32| COVERAGE_OFFSET as usize + guard as usize - 1;
    bytes[slot(guards[3])] = 1;
    // SAFETY: the region is mapped for as long as the program runs.
    let window = unsafe { Window::from_raw(region) }.expect("a window");
    attach(window, 1, "test", |_| false).expect("a slot");

    let mut map = [0; COVERAGE_BYTES as usize];
    assert!(host::coverage(&*bytes, &mut map));
    let hits = |map: &[u8], guard: u32| map[guard as usize - 1];
    assert_eq!(hits(&map, guards[3]), 3, "what was counted before is there, beside what others counted");
    pass(&guards[3], 1000);
    pass(&guards[4], 1);
    assert!(host::coverage(&*bytes, &mut map));
    assert_eq!((hits(&map, guards[3]), hits(&map, guards[4])), (255, 1));
    assert_eq!(map.iter().filter(|count| **count != 0).count(), 2, "a guard without a number counts nothing");

    host::clear_coverage(bytes);
    assert!(!host::coverage(&*bytes, &mut map) && map == [0; COVERAGE_BYTES as usize]);
}
