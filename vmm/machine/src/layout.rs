// SPDX-License-Identifier: AGPL-3.0-or-later
//! Where everything is: guest-physical addresses, ports and interrupt inputs. One table for the bus, ACPI and the docs.

use chaoscontrol_protocol::{DOORBELL_BYTES, REGION_ADDRESS, WINDOW_BYTES};

/// I/O APIC registers.
pub const IOAPIC_ADDRESS: u64 = 0xfec0_0000;
/// Local APIC registers.
pub const LAPIC_ADDRESS: u64 = 0xfee0_0000;
/// Bytes of each APIC's page.
pub const APIC_BYTES: u64 = 0x1000;
/// First virtio-mmio slot.
pub const VIRTIO_ADDRESS: u64 = 0xd000_0000;
/// Bytes of a virtio-mmio slot.
pub const VIRTIO_SLOT_BYTES: u64 = 0x1000;
/// Interrupt input of each virtio-mmio slot; below 16, so that the PIC has them too.
pub const VIRTIO_IRQS: [u8; 7] = [5, 10, 11, 12, 6, 7, 3];
/// Slot of the entropy device.
pub const SLOT_RNG: usize = 0;
/// Slot of the console.
pub const SLOT_CONSOLE: usize = 1;
/// Slot of the network card.
pub const SLOT_NET: usize = 2;
/// Slot of the first disk.
pub const SLOT_DISK: usize = 3;
/// The SDK's doorbell and window.
pub const SDK_ADDRESS: u64 = REGION_ADDRESS;
/// Bytes of both.
pub const SDK_BYTES: u64 = DOORBELL_BYTES + WINDOW_BYTES;

/// COM1.
pub const SERIAL_PORT: u16 = 0x3f8;
/// Real-time clock.
pub const RTC_PORT: u16 = 0x70;

/// Timer.
pub const IRQ_PIT: u8 = 0;
/// COM1.
pub const IRQ_SERIAL: u8 = 4;
/// Real-time clock.
pub const IRQ_RTC: u8 = 8;
/// ACPI system control interrupt.
pub const IRQ_SCI: u8 = 9;
/// I/O APIC input of the timer; every other interrupt has the input of its number.
pub const IOAPIC_INPUT_PIT: u8 = 2;

/// The address of a virtio-mmio slot.
pub fn virtio_address(slot: usize) -> u64 {
    VIRTIO_ADDRESS + slot as u64 * VIRTIO_SLOT_BYTES
}
