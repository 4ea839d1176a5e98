// SPDX-License-Identifier: Apache-2.0
//! How many interrupts the kernel counted, and how much memory it has left.

/// Line of the entropy device, which asks for nothing by itself while the probe runs.
const ENTROPY: &str = "5";

/// What happened in a window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Window {
    /// Interrupts of the entropy device's line.
    pub entropy: u64,
    /// Non-maskable interrupts.
    pub nmis: u64,
}

/// The counters.
pub struct Interrupts {
    seen: Window,
}

impl Interrupts {
    /// Starts from now.
    pub fn new() -> Self {
        Self { seen: read() }
    }

    /// What happened since the last call.
    pub fn take_window(&mut self) -> Window {
        let now = read();
        let seen = std::mem::replace(&mut self.seen, now);
        Window { entropy: now.entropy.wrapping_sub(seen.entropy), nmis: now.nmis.wrapping_sub(seen.nmis) }
    }
}

fn read() -> Window {
    let text = std::fs::read_to_string("/proc/interrupts").unwrap_or_default();
    Window { entropy: count(&text, ENTROPY), nmis: count(&text, "NMI") }
}

/// Memory that programs could get now, in KiB.
pub fn available_kib() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    line.and_then(|line| line.split_ascii_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// The interrupts of a line over all CPUs: the numbers after its name.
fn count(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.trim_start().strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or("").split_ascii_whitespace().map_while(|word| word.parse::<u64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::count;

    #[test]
    fn the_counts_of_all_cpus_are_added() {
        let text = "      CPU0  CPU1\n  5:  3  4  IO-APIC 5-edge virtio0\n NMI: 2 1 Non-maskable interrupts\n";
        assert_eq!((count(text, "5"), count(text, "NMI"), count(text, "6")), (7, 3, 0));
    }
}
