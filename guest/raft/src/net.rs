// SPDX-License-Identifier: Apache-2.0
//! One TCP connection between each two nodes, called by the one with the higher id, and a poll loop over them.
//!
//! A message to a peer that cannot be reached is dropped: the protocol repeats what matters. The kernel ends a connection whose
//! data is not acknowledged for half a second, so that after a partition nobody waits for a backed-off retransmission.

use crate::log::NodeId;
use crate::message::Message;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd};

const CONNECT_NS_MAX: u64 = 200_000_000;
const RETRY_NS: u64 = 100_000_000;
const UNACKNOWLEDGED_MS_MAX: libc::c_uint = 500;
/// Bytes that may wait to be sent to a peer.
const WAITING_BYTES_MAX: usize = 256 << 10;
/// Connections that have not said who called.
const CALLERS_MAX: usize = 16;
const READ_BYTES: usize = 16 << 10;

enum Link {
    /// Nothing until then.
    Down {
        retry_ns: u64,
    },
    /// The call is on its way.
    Calling {
        stream: TcpStream,
        since_ns: u64,
    },
    Up(Connection),
}

struct Connection {
    stream: TcpStream,
    received: Vec<u8>,
    waiting: Vec<u8>,
}

impl Connection {
    fn new(stream: TcpStream) -> Self {
        Self { stream, received: Vec::new(), waiting: Vec::new() }
    }

    /// Sends what waits, as far as the kernel takes it.
    fn flush(&mut self) -> io::Result<()> {
        while !self.waiting.is_empty() {
            match self.stream.write(&self.waiting) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(bytes) => drop(self.waiting.drain(..bytes)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Takes what arrived.
    fn receive(&mut self) -> io::Result<()> {
        let mut buffer = [0; READ_BYTES];
        match self.stream.read(&mut buffer) {
            Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
            Ok(bytes) => {
                self.received.extend_from_slice(&buffer[..bytes]);
                Ok(())
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// The next whole message.
    fn next(&mut self) -> io::Result<Option<Message>> {
        match Message::decode(&self.received) {
            Ok(Some((message, bytes))) => {
                self.received.drain(..bytes);
                Ok(Some(message))
            }
            Ok(None) => Ok(None),
            Err(_) => Err(ErrorKind::InvalidData.into()),
        }
    }
}

/// The node's side of all connections.
pub struct Net {
    id: NodeId,
    addresses: Vec<SocketAddrV4>,
    listener: TcpListener,
    links: Vec<Link>,
    callers: Vec<Connection>,
}

impl Net {
    /// Listens at the node's own address.
    pub fn new(id: NodeId, addresses: Vec<SocketAddrV4>) -> io::Result<Self> {
        let own = addresses[id as usize];
        let listener = TcpListener::bind(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, own.port()))?;
        listener.set_nonblocking(true)?;
        let links = addresses.iter().map(|_| Link::Down { retry_ns: 0 }).collect();
        Ok(Self { id, addresses, listener, links, callers: Vec::new() })
    }

    /// When a call has to be made or given up.
    pub fn deadline_ns(&self) -> u64 {
        let due = |(peer, link): (usize, &Link)| match link {
            Link::Down { retry_ns } if (peer as NodeId) < self.id => *retry_ns,
            Link::Calling { since_ns, .. } => since_ns + CONNECT_NS_MAX,
            _ => u64::MAX,
        };
        self.links.iter().enumerate().map(due).min().unwrap_or(u64::MAX)
    }

    /// Makes and gives up calls.
    pub fn tick(&mut self, now_ns: u64) {
        for peer in 0..self.id as usize {
            match &self.links[peer] {
                Link::Down { retry_ns } if now_ns >= *retry_ns => {
                    self.links[peer] = match call(self.addresses[peer]) {
                        Ok(stream) => Link::Calling { stream, since_ns: now_ns },
                        Err(_) => Link::Down { retry_ns: now_ns + RETRY_NS },
                    };
                }
                Link::Calling { since_ns, .. } if now_ns >= since_ns + CONNECT_NS_MAX => {
                    self.links[peer] = Link::Down { retry_ns: now_ns };
                }
                _ => {}
            }
        }
    }

    /// Queues a message, or drops it.
    pub fn send(&mut self, to: NodeId, message: &Message) {
        if let Some(Link::Up(connection)) = self.links.get_mut(to as usize)
            && connection.waiting.len() < WAITING_BYTES_MAX
        {
            message.encode(&mut connection.waiting);
        }
    }

    /// Sends what is queued.
    pub fn flush(&mut self, now_ns: u64) {
        for link in &mut self.links {
            if let Link::Up(connection) = link
                && connection.flush().is_err()
            {
                *link = Link::Down { retry_ns: now_ns + RETRY_NS };
            }
        }
    }

    /// Waits at most `timeout_ms` for something to happen and gives what was received.
    pub fn wait(&mut self, timeout_ms: i32, now: &dyn Fn() -> u64) -> Vec<(NodeId, Message)> {
        let mut polls = vec![poll_of(&self.listener, false)];
        for link in &self.links {
            polls.push(match link {
                Link::Down { .. } => libc::pollfd { fd: -1, events: 0, revents: 0 },
                Link::Calling { stream, .. } => poll_of(stream, true),
                Link::Up(connection) => poll_of(&connection.stream, !connection.waiting.is_empty()),
            });
        }
        polls.extend(self.callers.iter().map(|caller| poll_of(&caller.stream, false)));
        // SAFETY: the array is as long as stated. An interruption is a wait that ended early.
        let ready = unsafe { libc::poll(polls.as_mut_ptr(), polls.len() as libc::nfds_t, timeout_ms) };
        let mut received = Vec::new();
        if ready > 0 {
            let now_ns = now();
            let (of_links, of_callers) = polls[1..].split_at(self.links.len());
            for (peer, poll) in of_links.iter().enumerate().filter(|(_, poll)| poll.revents != 0) {
                self.link_ready(peer, poll.revents, now_ns, &mut received);
            }
            self.callers_ready(of_callers, &mut received);
            if polls[0].revents != 0 {
                self.accept();
            }
        }
        received
    }

    fn link_ready(&mut self, peer: usize, events: libc::c_short, now_ns: u64, received: &mut Vec<(NodeId, Message)>) {
        let down = Link::Down { retry_ns: now_ns + RETRY_NS };
        match std::mem::replace(&mut self.links[peer], down) {
            Link::Calling { stream, .. } => {
                if matches!(stream.take_error(), Ok(None)) && events & (libc::POLLERR | libc::POLLHUP) == 0 {
                    let mut connection = Connection::new(stream);
                    Message::Hello { node: self.id }.encode(&mut connection.waiting);
                    if connection.flush().is_ok() {
                        self.links[peer] = Link::Up(connection);
                    }
                }
            }
            Link::Up(mut connection) => {
                if exchange(&mut connection, peer as NodeId, events, received).is_ok() {
                    self.links[peer] = Link::Up(connection);
                }
            }
            Link::Down { .. } => {}
        }
    }

    /// A caller's first message says who it is; its connection replaces an older one.
    fn callers_ready(&mut self, polls: &[libc::pollfd], received: &mut Vec<(NodeId, Message)>) {
        for at in (0..polls.len()).rev().filter(|at| polls[*at].revents != 0) {
            let mut caller = self.callers.swap_remove(at);
            if caller.receive().is_err() {
                continue;
            }
            match caller.next() {
                Ok(None) => self.callers.push(caller),
                Ok(Some(Message::Hello { node }))
                    if node > self.id
                        && (node as usize) < self.links.len()
                        && exchange(&mut caller, node, 0, received).is_ok() =>
                {
                    self.links[node as usize] = Link::Up(caller);
                }
                _ => {}
            }
        }
    }

    fn accept(&mut self) {
        while let Ok((stream, _)) = self.listener.accept() {
            if self.callers.len() >= CALLERS_MAX {
                self.callers.remove(0);
            }
            if stream.set_nonblocking(true).is_ok() && prepare(&stream).is_ok() {
                self.callers.push(Connection::new(stream));
            }
        }
    }
}

fn exchange(
    connection: &mut Connection,
    peer: NodeId,
    events: libc::c_short,
    received: &mut Vec<(NodeId, Message)>,
) -> io::Result<()> {
    if events & libc::POLLOUT != 0 {
        connection.flush()?;
    }
    if events & (libc::POLLIN | libc::POLLERR | libc::POLLHUP) != 0 {
        connection.receive()?;
    }
    while let Some(message) = connection.next()? {
        received.push((peer, message));
    }
    Ok(())
}

fn poll_of(socket: &impl AsRawFd, write: bool) -> libc::pollfd {
    let events = libc::POLLIN | if write { libc::POLLOUT } else { 0 };
    libc::pollfd { fd: socket.as_raw_fd(), events, revents: 0 }
}

/// Begins a connection without waiting for it.
fn call(address: SocketAddrV4) -> io::Result<TcpStream> {
    // SAFETY: makes a socket, checked before it is owned.
    let socket =
        unsafe { libc::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC, 0) };
    if socket < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is open and nobody else's.
    let stream = unsafe { TcpStream::from_raw_fd(socket) };
    prepare(&stream)?;
    let target = libc::sockaddr_in {
        sin_family: libc::AF_INET as libc::sa_family_t,
        sin_port: address.port().to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(address.ip().octets()) },
        sin_zero: [0; 8],
    };
    // SAFETY: the address is of the size stated and lives over the call.
    let done =
        unsafe { libc::connect(socket, (&raw const target).cast(), size_of::<libc::sockaddr_in>() as libc::socklen_t) };
    let error = io::Error::last_os_error();
    if done == 0 || error.raw_os_error() == Some(libc::EINPROGRESS) { Ok(stream) } else { Err(error) }
}

/// Small messages at once, and no endless retransmission.
fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let limit = UNACKNOWLEDGED_MS_MAX;
    // SAFETY: the option reads one unsigned integer, which lives over the call.
    let done = unsafe {
        libc::setsockopt(
            stream.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_USER_TIMEOUT,
            (&raw const limit).cast(),
            size_of_val(&limit) as libc::socklen_t,
        )
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
