// SPDX-License-Identifier: AGPL-3.0-or-later
//! The kernel command line: a fixed part, what the firmware model needs, and the user's.

use super::BootError;
use crate::board::Board;
use crate::config::{Firmware, VmConfig};
use crate::layout::{SLOT_CONSOLE, SLOT_DISK, SLOT_NET, SLOT_RNG, VIRTIO_IRQS, VIRTIO_SLOT_BYTES, virtio_address};

/// Longest command line, its zero byte included (Linux, `COMMAND_LINE_SIZE` on x86).
pub const COMMAND_LINE_BYTES_MAX: usize = 2048;

/// What every guest gets. Each word removes a source of randomness, a calibration loop or a probe of hardware that is not there.
const FIXED: &str = "console=ttyS0 nokaslr mitigations=off audit=0 norandmaps random.trust_cpu=off tsc=reliable \
                     tsc_early_khz=1000000 no_timer_check pci=off panic=-1 8250.nr_uarts=1";

/// The virtio-mmio slots that have a device, ascending.
pub fn slots(board: &Board) -> Vec<usize> {
    let mut slots = vec![SLOT_RNG, SLOT_CONSOLE];
    if board.net.is_some() {
        slots.push(SLOT_NET);
    }
    slots.extend((0..board.disks.len()).map(|index| SLOT_DISK + index));
    slots
}

/// The whole command line with its terminating zero.
pub(crate) fn build(config: &VmConfig, board: &Board) -> Result<Vec<u8>, BootError> {
    let mut line = FIXED.to_owned();
    if config.firmware == Firmware::Legacy {
        line.push_str(" acpi=off noapic nolapic");
        for slot in slots(board) {
            let (address, irq) = (virtio_address(slot), VIRTIO_IRQS[slot]);
            line.push_str(&format!(" virtio_mmio.device={VIRTIO_SLOT_BYTES}@{address:#x}:{irq}"));
        }
    }
    if !config.append.is_empty() {
        line.push(' ');
        line.push_str(&config.append);
    }
    if let Some(bad) = line.chars().find(|character| !matches!(character, ' '..='~')) {
        return Err(BootError::CommandLine(format!("character {:?} is not printable ASCII", bad)));
    }
    let mut bytes = line.into_bytes();
    bytes.push(0);
    if bytes.len() > COMMAND_LINE_BYTES_MAX {
        let limit = format!("a command line has at most {COMMAND_LINE_BYTES_MAX}");
        return Err(BootError::TooLarge { what: "command line", bytes: bytes.len() as u64, limit });
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::NetConfig;

    fn config(append: &str) -> VmConfig {
        VmConfig { append: append.to_owned(), ..VmConfig::new(64 << 20, Vec::new().into()) }
    }

    fn line(config: &VmConfig) -> Result<String, BootError> {
        build(config, &Board::new(config)).map(|bytes| String::from_utf8(bytes).unwrap())
    }

    #[test]
    fn the_users_part_comes_last() {
        let line = line(&config("quiet chaos.vm=1")).unwrap();
        assert!(line.starts_with("console=ttyS0 nokaslr ") && line.ends_with(" quiet chaos.vm=1\0"), "{line}");
    }

    #[test]
    fn without_acpi_the_command_line_names_the_devices() {
        let mut config = config("");
        config.firmware = Firmware::Legacy;
        config.net = Some(NetConfig { mac: [2; 6] });
        let line = line(&config).unwrap();
        assert!(line.contains("noapic nolapic virtio_mmio.device=4096@0xd0000000:5"), "{line}");
        assert!(line.contains("virtio_mmio.device=4096@0xd0002000:11"), "{line}");
    }

    #[test]
    fn what_a_kernel_cannot_read_is_refused() {
        assert!(matches!(line(&config("a\nb")), Err(BootError::CommandLine(_))));
        assert!(matches!(line(&config(&"x".repeat(2048))), Err(BootError::TooLarge { .. })));
    }
}
