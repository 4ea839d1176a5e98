// SPDX-License-Identifier: AGPL-3.0-or-later
//! A small client of the GDB remote protocol, as far as lockstep needs it.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;

/// Largest packet payload that QEMU's stub takes, in hexadecimal bytes of memory.
const CHUNK_BYTES: usize = 1024;

/// A connection to a stub.
pub struct Gdb {
    stream: UnixStream,
    buffer: Vec<u8>,
}

fn protocol(what: &str, answer: &[u8]) -> io::Error {
    io::Error::other(format!("gdb stub answered {what} with {:?}", String::from_utf8_lossy(answer)))
}

impl Gdb {
    /// Takes a connected socket.
    pub fn new(stream: UnixStream) -> Self {
        Self { stream, buffer: Vec::new() }
    }

    /// Sends a packet and returns the answer's payload.
    pub fn command(&mut self, payload: &str) -> io::Result<Vec<u8>> {
        let sum = payload.bytes().fold(0u8, |sum, byte| sum.wrapping_add(byte));
        self.stream.write_all(format!("${payload}#{sum:02x}").as_bytes())?;
        self.answer()
    }

    fn answer(&mut self) -> io::Result<Vec<u8>> {
        loop {
            if let Some(packet) = self.take_packet() {
                self.stream.write_all(b"+")?;
                return Ok(packet);
            }
            let mut chunk = [0; 8192];
            let got = self.stream.read(&mut chunk)?;
            if got == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.buffer.extend_from_slice(&chunk[..got]);
        }
    }

    /// A complete packet from the buffer; acknowledgements before it are dropped.
    fn take_packet(&mut self) -> Option<Vec<u8>> {
        let start = self.buffer.iter().position(|&byte| byte == b'$')?;
        let end = start + self.buffer[start..].iter().position(|&byte| byte == b'#')?;
        if self.buffer.len() < end + 3 {
            return None;
        }
        let packet = self.buffer[start + 1..end].to_vec();
        self.buffer.drain(..end + 3);
        Some(packet)
    }

    fn expect_ok(&mut self, payload: &str) -> io::Result<()> {
        let answer = self.command(payload)?;
        if answer == b"OK" { Ok(()) } else { Err(protocol(payload, &answer)) }
    }

    /// Addresses are physical from now on, or virtual again.
    pub fn physical(&mut self, physical: bool) -> io::Result<()> {
        self.expect_ok(&format!("Qqemu.PhyMemMode:{}", u8::from(physical)))
    }

    /// Reads memory.
    pub fn read(&mut self, address: u64, bytes: usize) -> io::Result<Vec<u8>> {
        let mut memory = Vec::with_capacity(bytes);
        while memory.len() < bytes {
            let count = (bytes - memory.len()).min(CHUNK_BYTES);
            let answer = self.command(&format!("m{:x},{count:x}", address + memory.len() as u64))?;
            let part = unhex(&answer).filter(|part| part.len() == count).ok_or_else(|| protocol("m", &answer))?;
            memory.extend(part);
        }
        Ok(memory)
    }

    /// Writes memory.
    pub fn write(&mut self, address: u64, bytes: &[u8]) -> io::Result<()> {
        for (index, chunk) in bytes.chunks(CHUNK_BYTES).enumerate() {
            let at = address + (index * CHUNK_BYTES) as u64;
            self.expect_ok(&format!("M{at:x},{:x}:{}", chunk.len(), crate::report::hex(chunk)))?;
        }
        Ok(())
    }

    /// All registers, as the stub packs them.
    pub fn registers(&mut self) -> io::Result<Vec<u8>> {
        let answer = self.command("g")?;
        unhex(&answer).ok_or_else(|| protocol("g", &answer))
    }

    /// One step.
    pub fn step(&mut self) -> io::Result<()> {
        self.resume("s")
    }

    /// Runs until a breakpoint.
    pub fn run(&mut self) -> io::Result<()> {
        self.resume("c")
    }

    fn resume(&mut self, how: &str) -> io::Result<()> {
        let answer = self.command(how)?;
        if answer.starts_with(b"T05") { Ok(()) } else { Err(protocol(how, &answer)) }
    }

    /// Sets or removes a hardware breakpoint.
    pub fn breakpoint(&mut self, address: u64, set: bool) -> io::Result<()> {
        self.expect_ok(&format!("{}1,{address:x},1", if set { 'Z' } else { 'z' }))
    }

    /// A command of QEMU's monitor; what it prints is dropped.
    pub fn monitor(&mut self, text: &str) -> io::Result<()> {
        let mut answer = self.command(&format!("qRcmd,{}", crate::report::hex(text.as_bytes())))?;
        while answer.first() == Some(&b'O') && answer != b"OK" {
            answer = self.answer()?;
        }
        if answer == b"OK" { Ok(()) } else { Err(protocol(text, &answer)) }
    }
}

fn unhex(text: &[u8]) -> Option<Vec<u8>> {
    let digit = |byte: u8| (byte as char).to_digit(16);
    text.chunks(2).map(|pair| Some((digit(pair[0])? << 4 | digit(*pair.get(1)?)?) as u8)).collect()
}
