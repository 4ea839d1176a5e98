// SPDX-License-Identifier: Apache-2.0
//! What the record encoding promises: every record survives it, and hostile bytes give typed errors.

use chaoscontrol_protocol::layout::*;
use chaoscontrol_protocol::{AssertionKind, CatalogEntry, DecodeError, EncodeError, LogLevel, Number, Outcome, Record};

/// SplitMix64, seeded: enough randomness for a test.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

fn entry() -> CatalogEntry<'static> {
    CatalogEntry {
        site: 3,
        kind: AssertionKind::AlwaysOrUnreachable,
        must_hit: false,
        line: 17,
        column: 5,
        message: "one leader per term",
        package: "demo",
        version: "0.1.0",
        file: "src/main.rs",
        module: "demo::inner",
        namespace: "",
        key: "",
    }
}

fn samples() -> Vec<Record<'static>> {
    vec![
        Record::ProcessStart { pid: 7, generation: 2, name: "raft" },
        Record::Catalog(entry()),
        Record::Catalog(CatalogEntry { namespace: "raft", key: "one leader", ..entry() }),
        Record::Quiet { lasts_ns: QUIET_NS_MAX },
        Record::CatalogEnd { sites: 4, digest: [9; 32] },
        Record::Assertion { site: 0, outcome: Outcome::Pass, details: "" },
        Record::Assertion { site: 1023, outcome: Outcome::Fail, details: "{\"term\":3}" },
        Record::Guidance { site: 1, maximize: true, left: Number::Signed(-4), right: Number::Unsigned(u64::MAX) },
        Record::Guidance { site: 1, maximize: false, left: Number::Float(1.5f64.to_bits()), right: Number::Float(0) },
        Record::Event { name: "elected", details: "{}" },
        Record::SetupComplete { details: "" },
        Record::Agree { site: 2, namespace: "leader", key: b"\x00\xff", digest: [1; 32], value: b"2" },
        Record::Random { id: 1, below: 0 },
        Record::Log { level: LogLevel::Error, text: "details are too long" },
        Record::ProcessExit { pid: 9, signalled: true, code: 11 },
    ]
}

fn encode(record: &Record<'_>) -> Vec<u8> {
    let mut buffer = [0xaa; RECORD_BYTES_MAX];
    let bytes = record.encode(&mut buffer).expect("the record is within its bounds");
    buffer[..bytes].to_vec()
}

#[test]
fn every_record_survives_encoding() {
    for record in samples() {
        let bytes = encode(&record);
        assert_eq!(bytes.len() % RECORD_ALIGN as usize, 0);
        assert_eq!(Record::decode(&bytes), Ok(record));
    }
}

#[test]
fn every_truncation_and_every_trailing_byte_is_refused() {
    for record in samples() {
        let bytes = encode(&record);
        for cut in 0..bytes.len() {
            assert!(Record::decode(&bytes[..cut]).is_err(), "{record:?} cut to {cut} bytes");
        }
        let mut longer = bytes.clone();
        longer.extend([0; 8]);
        assert_eq!(Record::decode(&longer), Err(DecodeError::Trailing { bytes: 8 }));
    }
}

#[test]
fn a_payload_shorter_or_longer_than_its_fields_is_refused() {
    for record in samples() {
        let bytes = encode(&record);
        let payload = usize::from(u16::from_le_bytes([bytes[0], bytes[1]]));
        for other in [payload.wrapping_sub(1), payload + 1] {
            if other > PAYLOAD_BYTES_MAX {
                continue;
            }
            let mut changed = bytes.clone();
            changed[..2].copy_from_slice(&(other as u16).to_le_bytes());
            changed.resize(record_bytes(other), 0);
            changed[RECORD_HEADER_BYTES + other..].fill(0);
            assert!(Record::decode(&changed).is_err(), "{record:?} with payload length {other}");
        }
    }
}

#[test]
fn the_header_is_strict() {
    let good = encode(&Record::SetupComplete { details: "" });
    let with = |at: usize, value: u8| {
        let mut bytes = good.clone();
        bytes[at] = value;
        Record::decode(&bytes).map(|_| ())
    };
    assert_eq!(with(2, 99), Err(DecodeError::UnknownKind(99)));
    assert_eq!(with(3, 1), Err(DecodeError::Version(1)));
    assert_eq!(with(4, 1), Err(DecodeError::Reserved));
    assert_eq!(with(good.len() - 1, 1), Err(DecodeError::Reserved));
    assert!(matches!(with(1, 0xff), Err(DecodeError::TooLong { field: "payload", .. })));
}

#[test]
fn values_out_of_range_are_refused_by_name() {
    let changed = |record: &Record<'_>, at: usize, value: u8| {
        let mut bytes = encode(record);
        bytes[RECORD_HEADER_BYTES + at] = value;
        Record::decode(&bytes).map(|_| ()).unwrap_err()
    };
    let field = |error| match error {
        DecodeError::OutOfRange { field, .. } | DecodeError::NotText { field } => field,
        other => panic!("unexpected {other:?}"),
    };
    let assertion = Record::Assertion { site: 1, outcome: Outcome::Pass, details: "x" };
    assert_eq!(field(changed(&assertion, 1, 0x80)), "site");
    assert_eq!(field(changed(&assertion, 2, 3)), "outcome");
    assert_eq!(field(changed(&assertion, 5, 0xff)), "details");
    assert_eq!(field(changed(&Record::Catalog(entry()), 2, 0)), "assertion kind");
    assert_eq!(field(changed(&Record::Catalog(entry()), 3, 2)), "must hit");
    assert_eq!(field(changed(&Record::Random { id: 1, below: 2 }, 0, 0)), "request id");
}

#[test]
fn what_is_too_long_is_not_encoded() {
    let long = "x".repeat(DETAILS_BYTES_MAX + 1);
    let mut buffer = [0; RECORD_BYTES_MAX];
    let expected =
        EncodeError::TooLong { field: "details", bytes: DETAILS_BYTES_MAX + 1, bytes_max: DETAILS_BYTES_MAX };
    assert_eq!(Record::SetupComplete { details: &long }.encode(&mut buffer), Err(expected));
    assert_eq!(Record::SetupComplete { details: &long[1..] }.encode(&mut [0; 64]), Err(EncodeError::NoRoom));
    assert_eq!(
        Record::Event { name: "", details: "" }.encode(&mut buffer),
        Err(EncodeError::OutOfRange { field: "event name" })
    );
}

#[test]
fn the_largest_record_of_each_kind_fits_its_bound() {
    let text = "x".repeat(PAYLOAD_BYTES_MAX);
    let largest = [
        Record::Catalog(CatalogEntry {
            message: &text[..MESSAGE_BYTES_MAX],
            package: &text[..PACKAGE_BYTES_MAX],
            file: &text[..FILE_BYTES_MAX],
            module: &text[..MODULE_BYTES_MAX],
            version: &text[..VERSION_BYTES_MAX],
            namespace: &text[..STABLE_BYTES_MAX],
            key: &text[..STABLE_BYTES_MAX],
            ..entry()
        }),
        Record::Event { name: &text[..EVENT_NAME_BYTES_MAX], details: &text[..DETAILS_BYTES_MAX] },
        Record::Agree {
            site: 0,
            namespace: &text[..NAMESPACE_BYTES_MAX],
            key: &text.as_bytes()[..KEY_BYTES_MAX],
            digest: [0; 32],
            value: &text.as_bytes()[..VALUE_SHOWN_BYTES_MAX],
        },
        Record::Log { level: LogLevel::Info, text: &text[..LOG_BYTES_MAX] },
    ];
    for record in largest {
        assert_eq!(Record::decode(&encode(&record)), Ok(record));
    }
}

#[test]
fn hostile_bytes_never_panic_and_decode_only_to_what_encodes_to_them() {
    let seed = 0x6368_616f_7301;
    println!("seed {seed:#x}");
    let mut random = Random(seed);
    let samples = samples();
    let mut decoded = 0;
    for _ in 0..200_000 {
        let mut bytes = encode(&samples[random.next() as usize % samples.len()]);
        for _ in 0..1 + random.next() % 3 {
            let at = random.next() as usize % bytes.len();
            bytes[at] = random.next() as u8;
        }
        if let Ok(record) = Record::decode(&bytes) {
            decoded += 1;
            assert_eq!(encode(&record), bytes);
        }
    }
    assert!(decoded > 1000, "some mutations stay records, but only {decoded} did");
}

#[test]
fn distances_order_like_the_differences_and_only_numbers_of_one_type_have_one() {
    let float = |value: f64| Number::Float(value.to_bits());
    let from_zero = |value: f64| float(value).distance(float(0.0)).unwrap();
    assert!(from_zero(1.5) > from_zero(0.25) && from_zero(-2.0) < from_zero(-1.0) && from_zero(-1.0) < from_zero(1.0));
    assert_eq!(Number::Unsigned(u64::MAX).distance(Number::Unsigned(0)), Some(i64::MAX));
    assert_eq!(Number::Unsigned(0).distance(Number::Unsigned(u64::MAX)), Some(i64::MIN));
    assert_eq!(Number::Signed(i64::MIN).distance(Number::Signed(1)), Some(i64::MIN));
    assert_eq!(Number::Unsigned(3).distance(Number::Unsigned(5)), Some(-2));
    assert_eq!(Number::Signed(3).distance(Number::Unsigned(3)), None);
    assert_eq!(float(f64::INFINITY).distance(float(f64::INFINITY)), None);
}
