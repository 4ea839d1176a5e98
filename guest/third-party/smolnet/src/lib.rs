// SPDX-License-Identifier: Apache-2.0
//! TCP for guests without a network stack, on smoltcp.
//!
//! A [`Stack`] owns whatever moves Ethernet frames ([`Frames`]: a driver of a virtio network card, a queue in a test) and knows no clock,
//! thread or randomness of its own: the caller says what time it is, and gives a seed (from `get_random`, say) for initial sequence numbers
//! and ports. So a run is a function of the frames, the times and the seed, and the same stack serves in a VM and in a test.
//!
//! ```
//! use chaos_smolnet::{Frames, Moment, Stack};
//!
//! struct Card;
//! impl Frames for Card {
//!     fn receive(&mut self) -> Option<Vec<u8>> { None }
//!     fn send(&mut self, _frame: &[u8]) {}
//! }
//!
//! let mut stack = Stack::new(Card, 0, 42, Moment::from_micros(0));
//! let connection = stack.connect(1, 9000)?;
//! let next = stack.poll(Moment::from_micros(10));
//! assert!(!stack.is_connected(connection) && next.is_some(), "it waits for an answer, and knows when to ask again");
//! # Ok::<(), chaos_smolnet::StackError>(())
//! ```
//!
//! Node n has the hardware address 02:00:00:00:00:(n+1) and the IP address 10.0.0.(n+1)/24, as everywhere in this repository.

use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{ChecksumCapabilities, Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::socket::tcp;
use smoltcp::wire::{EthernetAddress, IpAddress, IpCidr};
use std::fmt;

pub use smoltcp::time::{Duration, Instant as Moment};

/// Bytes of an Ethernet frame at most, without its checksum.
pub const FRAME_BYTES_MAX: usize = 1514;
/// Bytes that wait in each direction of a connection.
const BUFFER_BYTES: usize = 16 << 10;
/// Connections at a time.
pub const CONNECTIONS_MAX: usize = 64;
/// Nodes that the network has addresses for.
pub const NODES_MAX: u8 = 250;
/// The first of the ports that connections are made from.
const FIRST_PORT: u16 = 49_152;

/// Moves Ethernet frames.
pub trait Frames {
    /// The next frame that came in.
    fn receive(&mut self) -> Option<Vec<u8>>;
    /// Sends a frame; one that cannot be sent is lost.
    fn send(&mut self, frame: &[u8]);
}

/// Why the stack refuses something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StackError {
    /// As many connections as there may be.
    TooMany,
    /// A port or address that nothing can be at.
    NoSuchPlace,
    /// The connection takes no bytes any more.
    Closed,
}

impl fmt::Display for StackError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TooMany => "as many connections as there may be",
            Self::NoSuchPlace => "a port or address that nothing can be at",
            Self::Closed => "the connection takes no bytes any more",
        })
    }
}

impl std::error::Error for StackError {}

/// What a connection gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// So many bytes.
    Bytes(usize),
    /// Nothing yet.
    Nothing,
    /// Nothing any more.
    End,
}

/// A connection, or a place where one may come in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Connection(SocketHandle);

/// A node's network stack.
pub struct Stack<F: Frames> {
    port: Port<F>,
    interface: Interface,
    sockets: SocketSet<'static>,
    next_port: u16,
    connections: usize,
}

impl<F: Frames> Stack<F> {
    /// The stack of a node (below [`NODES_MAX`]).
    ///
    /// # Panics
    /// If the network has no address for the node.
    #[must_use]
    pub fn new(frames: F, node: u8, seed: u64, now: Moment) -> Self {
        assert!(node < NODES_MAX, "at most {NODES_MAX} nodes have addresses");
        let mut config = Config::new(EthernetAddress([2, 0, 0, 0, 0, node + 1]).into());
        config.random_seed = seed;
        let mut port = Port(frames);
        let mut interface = Interface::new(config, &mut port, now);
        interface.update_ip_addrs(|addresses| {
            addresses.push(IpCidr::new(address(node), 24)).expect("a new interface has room for an address");
        });
        // Two lives of a node seldom begin at one port, so that a late segment for the first means nothing to the second.
        let next_port = FIRST_PORT + (seed % 8192) as u16;
        Self { port, interface, sockets: SocketSet::new(Vec::new()), next_port, connections: 0 }
    }

    /// A place at which one connection may come in. Listen again for the next one.
    pub fn listen(&mut self, port: u16) -> Result<Connection, StackError> {
        let mut socket = self.socket()?;
        socket.listen(port).map_err(|_| StackError::NoSuchPlace)?;
        Ok(self.add(socket))
    }

    /// Begins a connection to a node.
    pub fn connect(&mut self, node: u8, port: u16) -> Result<Connection, StackError> {
        let mut socket = self.socket()?;
        let own = self.next_port;
        self.next_port = own.checked_add(1).unwrap_or(FIRST_PORT);
        let there = (address(node), port);
        socket.connect(self.interface.context(), there, own).map_err(|_| StackError::NoSuchPlace)?;
        Ok(self.add(socket))
    }

    /// Takes frames in, sends what is to be sent, and says when it wants to be asked again if no frame comes before.
    pub fn poll(&mut self, now: Moment) -> Option<Duration> {
        self.interface.poll(now, &mut self.port, &mut self.sockets);
        self.interface.poll_delay(now, &self.sockets)
    }

    /// Whether the other side is there.
    #[must_use]
    pub fn is_connected(&self, connection: Connection) -> bool {
        let socket = self.sockets.get::<tcp::Socket>(connection.0);
        socket.may_send() || socket.may_recv()
    }

    /// Whether nothing will ever come of it any more.
    #[must_use]
    pub fn is_over(&self, connection: Connection) -> bool {
        !self.sockets.get::<tcp::Socket>(connection.0).is_open()
    }

    /// Gives bytes to a connection; how many it took, which may be none.
    pub fn send(&mut self, connection: Connection, bytes: &[u8]) -> Result<usize, StackError> {
        let socket = self.sockets.get_mut::<tcp::Socket>(connection.0);
        if !socket.can_send() && socket.is_open() {
            return Ok(0);
        }
        socket.send_slice(bytes).map_err(|_| StackError::Closed)
    }

    /// Takes bytes that came.
    pub fn receive(&mut self, connection: Connection, into: &mut [u8]) -> Received {
        let socket = self.sockets.get_mut::<tcp::Socket>(connection.0);
        match socket.recv_slice(into) {
            Ok(0) => Received::Nothing,
            Ok(bytes) => Received::Bytes(bytes),
            // Before it is established nothing can be taken, and something may still come.
            Err(_) if !socket.may_recv() && socket.is_open() && !was_established(socket.state()) => Received::Nothing,
            Err(_) => Received::End,
        }
    }

    /// Says that no more bytes will be given; what was given still arrives.
    pub fn close(&mut self, connection: Connection) {
        self.sockets.get_mut::<tcp::Socket>(connection.0).close();
    }

    /// Forgets a connection; the other side is told with the next poll, if it is still there.
    pub fn forget(&mut self, connection: Connection, now: Moment) {
        self.sockets.get_mut::<tcp::Socket>(connection.0).abort();
        self.poll(now);
        self.sockets.remove(connection.0);
        self.connections -= 1;
    }

    /// What moves its frames.
    pub fn frames(&mut self) -> &mut F {
        &mut self.port.0
    }

    fn socket(&self) -> Result<tcp::Socket<'static>, StackError> {
        if self.connections >= CONNECTIONS_MAX {
            return Err(StackError::TooMany);
        }
        let buffer = || tcp::SocketBuffer::new(vec![0; BUFFER_BYTES]);
        Ok(tcp::Socket::new(buffer(), buffer()))
    }

    fn add(&mut self, socket: tcp::Socket<'static>) -> Connection {
        self.connections += 1;
        Connection(self.sockets.add(socket))
    }
}

fn was_established(state: tcp::State) -> bool {
    !matches!(state, tcp::State::Listen | tcp::State::SynSent | tcp::State::SynReceived)
}

fn address(node: u8) -> IpAddress {
    IpAddress::v4(10, 0, 0, node.saturating_add(1))
}

/// Frames as smoltcp wants them.
struct Port<F>(F);

struct Incoming(Vec<u8>);

struct Outgoing<'a, F>(&'a mut F);

impl RxToken for Incoming {
    fn consume<R, C: FnOnce(&[u8]) -> R>(self, take: C) -> R {
        take(&self.0)
    }
}

impl<F: Frames> TxToken for Outgoing<'_, F> {
    fn consume<R, C: FnOnce(&mut [u8]) -> R>(self, bytes: usize, fill: C) -> R {
        let mut frame = vec![0; bytes];
        let result = fill(&mut frame);
        self.0.send(&frame);
        result
    }
}

impl<F: Frames> Device for Port<F> {
    type RxToken<'a>
        = Incoming
    where
        F: 'a;
    type TxToken<'a>
        = Outgoing<'a, F>
    where
        F: 'a;

    fn receive(&mut self, _now: Moment) -> Option<(Incoming, Outgoing<'_, F>)> {
        let frame = self.0.receive()?;
        Some((Incoming(frame), Outgoing(&mut self.0)))
    }

    fn transmit(&mut self, _now: Moment) -> Option<Outgoing<'_, F>> {
        Some(Outgoing(&mut self.0))
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut capabilities = DeviceCapabilities::default();
        capabilities.medium = Medium::Ethernet;
        capabilities.max_transmission_unit = FRAME_BYTES_MAX;
        // Every checksum is made and checked here: nothing else would.
        capabilities.checksum = ChecksumCapabilities::default();
        capabilities
    }
}
