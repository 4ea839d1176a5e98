// SPDX-License-Identifier: AGPL-3.0-or-later
//! What the headers of an Ethernet frame say, in a few words (RFC 791, 826, 768, 9293, 8200). Frames come from a guest: every
//! read is bounded, and what makes no sense is named by its type alone.

use std::fmt::Write;

/// A frame in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Described {
    /// Protocol, ports, flags, payload.
    pub text: String,
    /// Whether it carries nothing of the workload: an acknowledgement alone, an address lookup.
    pub is_bare: bool,
}

/// Describes a frame by its first bytes and its whole length.
pub fn describe(head: &[u8], bytes: u32) -> Described {
    let bare = |text: String| Described { text, is_bare: true };
    match be16(head, 12) {
        Some(0x0800) => ipv4(head.get(14..).unwrap_or_default(), bytes),
        Some(0x0806) => bare(match be16(head, 20) {
            Some(1) => "ARP who has".to_owned(),
            Some(2) => "ARP is at".to_owned(),
            _ => "ARP".to_owned(),
        }),
        Some(0x86dd) => ipv6(head.get(14..).unwrap_or_default(), bytes),
        Some(kind) => Described { text: format!("type 0x{kind:04x}, {bytes} bytes"), is_bare: false },
        None => Described { text: format!("{bytes} bytes"), is_bare: false },
    }
}

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at + 2).map(|pair| u16::from_be_bytes([pair[0], pair[1]]))
}

fn ipv4(packet: &[u8], bytes: u32) -> Described {
    let header = packet.first().map_or(0, |first| usize::from(first & 0xf) * 4);
    let total = be16(packet, 2).map_or(0, u32::from);
    let unknown = Described { text: format!("IPv4, {bytes} bytes"), is_bare: false };
    let Some(body) = packet.get(header..).filter(|_| header >= 20) else { return unknown };
    if be16(packet, 6).is_some_and(|fragment| fragment & 0x1fff != 0) {
        return Described { text: format!("IPv4 fragment, {bytes} bytes"), is_bare: false };
    }
    transport(packet.get(9).copied(), body, total.saturating_sub(header as u32), bytes)
}

fn ipv6(packet: &[u8], bytes: u32) -> Described {
    let body = packet.get(40..).unwrap_or_default();
    if packet.get(6) == Some(&58) {
        return Described { text: "ICMPv6".to_owned(), is_bare: true };
    }
    transport(packet.get(6).copied(), body, be16(packet, 4).map_or(0, u32::from), bytes)
}

/// A segment with `length` bytes by its packet's header.
fn transport(protocol: Option<u8>, body: &[u8], length: u32, bytes: u32) -> Described {
    match (protocol, be16(body, 0), be16(body, 2)) {
        (Some(6), Some(source), Some(target)) => tcp(body, length, source, target),
        (Some(17), Some(source), Some(target)) => {
            let payload = length.saturating_sub(8);
            Described { text: format!("UDP {source} to {target}, {payload} bytes"), is_bare: false }
        }
        (Some(1), ..) => Described { text: format!("ICMP, {bytes} bytes"), is_bare: false },
        (Some(protocol), ..) => Described { text: format!("IP protocol {protocol}, {bytes} bytes"), is_bare: false },
        (None, ..) => Described { text: format!("IP, {bytes} bytes"), is_bare: false },
    }
}

fn tcp(segment: &[u8], length: u32, source: u16, target: u16) -> Described {
    let header = segment.get(12).map_or(20, |byte| u32::from(byte >> 4) * 4);
    let flags = segment.get(13).copied().unwrap_or(0);
    let payload = length.saturating_sub(header);
    let mut text = format!("TCP {source} to {target}");
    for (bit, name) in [(0x02, "SYN"), (0x01, "FIN"), (0x04, "RST")] {
        if flags & bit != 0 {
            let _ = write!(text, " {name}");
        }
    }
    let is_bare = payload == 0 && flags & 0x07 == 0;
    if payload > 0 {
        let _ = write!(text, ", {payload} bytes");
    } else if is_bare {
        text.push_str(" ACK");
    }
    Described { text, is_bare }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(flags: u8, payload: u16) -> Vec<u8> {
        let mut frame = vec![0; 12];
        frame.extend([0x08, 0x00, 0x45, 0]);
        frame.extend((40 + payload).to_be_bytes());
        frame.extend([0, 0, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        frame.extend([0x1b, 0x58, 0xa0, 0x01]);
        frame.extend([0; 8]);
        frame.extend([0x50, flags, 0, 0, 0, 0, 0, 0]);
        frame
    }

    #[test]
    fn headers_are_named_and_acknowledgements_are_bare() {
        let data = describe(&segment(0x18, 85), 139);
        assert_eq!((data.text.as_str(), data.is_bare), ("TCP 7000 to 40961, 85 bytes", false));
        let ack = describe(&segment(0x10, 0), 54);
        assert_eq!((ack.text.as_str(), ack.is_bare), ("TCP 7000 to 40961 ACK", true));
        let syn = describe(&segment(0x12, 0), 54);
        assert_eq!((syn.text.as_str(), syn.is_bare), ("TCP 7000 to 40961 SYN", false));
    }

    #[test]
    fn no_frame_however_short_or_wrong_is_read_past_its_end() {
        let whole = segment(0x18, 85);
        for length in 0..whole.len() {
            describe(&whole[..length], 139);
        }
        for value in 0..=255 {
            let mut frame = whole.clone();
            for at in 12..frame.len() {
                let before = std::mem::replace(&mut frame[at], value);
                describe(&frame, u32::MAX);
                frame[at] = before;
            }
        }
    }
}
