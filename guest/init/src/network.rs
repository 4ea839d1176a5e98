// SPDX-License-Identifier: Apache-2.0
//! Brings interfaces up through the classic socket ioctls (netdevice(7)).

use crate::system::Failure;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// VMs that fit the /24 network.
const VMS_MAX: u32 = 250;
const NETMASK: Ipv4Addr = Ipv4Addr::new(255, 255, 255, 0);

/// The address of a VM.
pub fn address_of(vm: u32) -> Result<Ipv4Addr, Failure> {
    if vm >= VMS_MAX {
        return Err(Failure::new(format!("chaos.vm={vm}"), format!("at most {VMS_MAX} machines have addresses")));
    }
    Ok(Ipv4Addr::new(10, 0, 0, vm as u8 + 1))
}

/// Sets an interface's address, if one is given, and brings it up.
pub fn bring_up(interface: &str, address: Option<Ipv4Addr>) -> Result<(), Failure> {
    let what = format!("cannot bring {interface} up");
    // SAFETY: makes a socket; the descriptor is checked before it is owned.
    let socket = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    if socket < 0 {
        return Err(Failure::last(what));
    }
    // SAFETY: the descriptor is open and nobody else's.
    let socket = unsafe { OwnedFd::from_raw_fd(socket) };
    let mut request = named(interface);
    if let Some(address) = address {
        request.ifr_ifru.ifru_addr = socket_address(address);
        control(&socket, libc::SIOCSIFADDR, &mut request, &what)?;
        request.ifr_ifru.ifru_netmask = socket_address(NETMASK);
        control(&socket, libc::SIOCSIFNETMASK, &mut request, &what)?;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    control(&socket, libc::SIOCSIFFLAGS, &mut request, &what)
}

fn control(socket: &OwnedFd, code: libc::c_ulong, request: &mut libc::ifreq, what: &str) -> Result<(), Failure> {
    // SAFETY: all three requests read one `ifreq`, which lives over the call.
    let done = unsafe { libc::ioctl(socket.as_raw_fd(), code as _, std::ptr::from_mut(request)) };
    if done == 0 { Ok(()) } else { Err(Failure::last(what)) }
}

fn named(interface: &str) -> libc::ifreq {
    // SAFETY: all-zero bytes are a valid `ifreq`: an empty name and a zero union.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (slot, byte) in request.ifr_name.iter_mut().zip(interface.bytes().take(libc::IFNAMSIZ - 1)) {
        *slot = byte as libc::c_char;
    }
    request
}

fn socket_address(address: Ipv4Addr) -> libc::sockaddr {
    let mut out = libc::sockaddr { sa_family: libc::AF_INET as libc::sa_family_t, sa_data: [0; 14] };
    // `sockaddr_in`: two bytes of port, then the address in network order.
    for (slot, byte) in out.sa_data[2..6].iter_mut().zip(address.octets()) {
        *slot = byte as libc::c_char;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_start_at_one_and_stay_in_the_network() {
        assert_eq!(address_of(0).unwrap(), Ipv4Addr::new(10, 0, 0, 1));
        assert_eq!(address_of(VMS_MAX - 1).unwrap(), Ipv4Addr::new(10, 0, 0, 250));
        assert!(address_of(VMS_MAX).is_err());
    }

    #[test]
    fn a_socket_address_has_the_bytes_of_sockaddr_in() {
        let address = socket_address(Ipv4Addr::new(10, 0, 0, 7));
        assert_eq!(address.sa_family, libc::AF_INET as u16);
        assert_eq!(address.sa_data[..7], [0, 0, 10, 0, 0, 7, 0]);
    }

    #[test]
    fn the_loopback_comes_up_or_says_why_not() {
        // Without root the kernel refuses; either way the answer is a clear one.
        if let Err(failure) = bring_up("lo", None) {
            assert!(failure.to_string().starts_with("cannot bring lo up: "), "{failure}");
        }
        assert!(bring_up("no-such-if", None).is_err());
    }
}
