// SPDX-License-Identifier: AGPL-3.0-or-later
//! A server that hands out tickets and a client that takes them, as one program: `role=client` on the kernel command line makes the
//! client. No two tickets of one server's life are the same; with `tickets=forgetful` the server repeats one in a hundred.

use chaoscontrol_sdk::{assert_always, assert_sometimes, details, guest, setup_complete};
use std::net::UdpSocket;
use std::time::Duration;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    chaoscontrol_sdk::init()?;
    let socket = UdpSocket::bind("0.0.0.0:9000")?;
    socket.set_read_timeout(Some(Duration::from_millis(20)))?;
    let client = guest::parameter("role").is_some_and(|role| role == "client");
    setup_complete(details! { client: client })?;
    if client { take(&socket) } else { serve(&socket) }
}

/// Answers each request with the number of the request and the next ticket.
fn serve(socket: &UdpSocket) -> Result<(), Box<dyn std::error::Error>> {
    let forgetful = guest::parameter("tickets").is_some_and(|kind| kind == "forgetful");
    let mut next = 0u64;
    let mut buffer = [0u8; 8];
    loop {
        let Ok((8, from)) = socket.recv_from(&mut buffer) else { continue };
        next += 1;
        let ticket = if forgetful && next.is_multiple_of(100) { next - 1 } else { next };
        // A lost answer costs one ticket.
        let _ = socket.send_to(&[buffer, ticket.to_le_bytes()].concat(), from);
    }
}

/// Takes tickets; within one life of the server they go up.
fn take(socket: &UdpSocket) -> Result<(), Box<dyn std::error::Error>> {
    let mut last = 0u64;
    let mut buffer = [0u8; 16];
    for request in 1u64.. {
        let _ = socket.send_to(&request.to_le_bytes(), "10.0.0.1:9000");
        let Ok((16, _)) = socket.recv_from(&mut buffer) else { continue };
        let answered = u64::from_le_bytes(buffer[..8].try_into()?);
        let ticket = u64::from_le_bytes(buffer[8..].try_into()?);
        assert_sometimes!(ticket > 50, "many tickets are taken");
        // An answer to an older request may come late.
        if answered == request {
            assert_always!(ticket != last, "no ticket is handed out twice in a row", details! { ticket: ticket, last: last });
            last = ticket;
        }
    }
    Ok(())
}
