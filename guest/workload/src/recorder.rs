// SPDX-License-Identifier: Apache-2.0
//! Reports a client's operations as a history, for `chaos-history`.

use chaoscontrol_history::{Call, Outcome, Value};
use chaoscontrol_sdk::{SdkError, send_event_at_once};
use std::fmt::{self, Display, Write};

/// The name of the events.
const EVENT: &str = "chaos_history";

/// One process of a history: it calls one operation at a time.
#[derive(Debug)]
pub struct Recorder {
    process: u32,
    operation: u64,
}

impl Recorder {
    /// A process of this number, which nobody else on this node has.
    #[must_use]
    pub fn new(process: u32) -> Self {
        Self { process, operation: 0 }
    }

    /// Say this before the operation is begun.
    pub fn call(&mut self, key: &str, call: &Call) -> Result<(), SdkError> {
        self.operation += 1;
        send_event_at_once(EVENT, Step { recorder: self, body: &CallBody(key, call) })
    }

    /// Say this when it has ended. [`Outcome::Unknown`] is the honest end of what timed out.
    pub fn returned(&mut self, outcome: &Outcome) -> Result<(), SdkError> {
        send_event_at_once(EVENT, Step { recorder: self, body: &OutcomeBody(outcome) })
    }
}

struct Step<'a, B: ?Sized> {
    recorder: &'a Recorder,
    body: &'a B,
}

impl<B: Display + ?Sized> Display for Step<'_, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Recorder { process, operation } = self.recorder;
        write!(f, "{{\"process\":{process},\"operation\":{operation},{}}}", self.body)
    }
}

struct CallBody<'a>(&'a str, &'a Call);

impl Display for CallBody<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(key, call) = self;
        let name = match call {
            Call::Read => "read",
            Call::Write(_) => "write",
            Call::CompareAndSet { .. } => "compare_and_set",
            Call::Enqueue(_) => "enqueue",
            Call::Dequeue => "dequeue",
            Call::Add(_) => "add",
        };
        write!(f, "\"key\":{},\"call\":\"{name}\"", Text(key))?;
        match call {
            Call::Write(value) | Call::Enqueue(value) => write!(f, ",\"value\":{}", Json(value)),
            Call::CompareAndSet { expected, new } => {
                write!(f, ",\"expected\":{},\"value\":{}", Json(expected), Json(new))
            }
            Call::Add(amount) => write!(f, ",\"value\":{amount}"),
            Call::Read | Call::Dequeue => Ok(()),
        }
    }
}

struct OutcomeBody<'a>(&'a Outcome);

impl Display for OutcomeBody<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Outcome::Done(Value::Nothing) => f.write_str("\"outcome\":\"ok\""),
            Outcome::Done(value) => write!(f, "\"outcome\":\"ok\",\"value\":{}", Json(value)),
            Outcome::Refused => f.write_str("\"outcome\":\"refused\""),
            Outcome::Failed => f.write_str("\"outcome\":\"failed\""),
            Outcome::Unknown => f.write_str("\"outcome\":\"unknown\""),
        }
    }
}

struct Json<'a>(&'a Value);

impl Display for Json<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Value::Nothing => f.write_str("null"),
            Value::Number(number) => write!(f, "{number}"),
            Value::Text(text) => write!(f, "{}", Text(text)),
        }
    }
}

/// A JSON string.
struct Text<'a>(&'a str);

impl Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_char('"')?;
        for c in self.0.chars() {
            match c {
                '"' | '\\' => write!(f, "\\{c}")?,
                c if c < ' ' => write!(f, "\\u{:04x}", c as u32)?,
                c => f.write_char(c)?,
            }
        }
        f.write_char('"')
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_json() {
        let recorder = Recorder { process: 3, operation: 17 };
        let call = Call::CompareAndSet { expected: Value::Nothing, new: "a\"\n".into() };
        let step = Step { recorder: &recorder, body: &CallBody("x", &call) };
        let expected = concat!(
            r#"{"process":3,"operation":17,"key":"x","call":"compare_and_set","#,
            r#""expected":null,"value":"a\"\u000a"}"#
        );
        assert_eq!(step.to_string(), expected);
        let step = Step { recorder: &recorder, body: &OutcomeBody(&Outcome::Done(7.into())) };
        assert_eq!(step.to_string(), r#"{"process":3,"operation":17,"outcome":"ok","value":7}"#);
    }
}
