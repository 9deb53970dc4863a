//! Writes databases of MaxMind's format, version 2.0: a tree of bits, then the data of its leaves.

use std::net::IpAddr;

/// A value.
pub enum Value {
    Text(&'static str),
    Double(f64),
    U16(u16),
    U32(u32),
    U64(u64),
    Map(Vec<(&'static str, Value)>),
    List(Vec<Value>),
}

/// A leaf or node of the tree.
#[derive(Clone, Copy)]
enum Record {
    Nothing,
    Node(u32),
    /// Where in the data.
    Data(u32),
}

/// A database that knows these networks, each with its length.
pub fn write(networks: Vec<(&str, u8, Value)>) -> Vec<u8> {
    let (mut nodes, mut data) = (vec![[Record::Nothing; 2]], Vec::new());
    for (address, length, value) in networks {
        let at = data.len() as u32;
        value.write(&mut data);
        insert(&mut nodes, bits(address), length, at);
    }
    let count = nodes.len() as u32;
    let mut out = Vec::new();
    for record in nodes.iter().flatten() {
        let number = match record {
            Record::Nothing => count,
            Record::Node(node) => *node,
            Record::Data(at) => count + 16 + at,
        };
        out.extend_from_slice(&number.to_be_bytes()[1..]);
    }
    out.extend_from_slice(&[0; 16]);
    out.extend(data);
    out.extend_from_slice(b"\xab\xcd\xefMaxMind.com");
    let metadata = Value::Map(vec![
        ("node_count", Value::U32(count)),
        ("record_size", Value::U16(24)),
        ("ip_version", Value::U16(6)),
        ("database_type", Value::Text("Test")),
        ("languages", Value::List(vec![Value::Text("en")])),
        ("binary_format_major_version", Value::U16(2)),
        ("binary_format_minor_version", Value::U16(0)),
        ("build_epoch", Value::U64(1_700_000_000)),
        ("description", Value::Map(vec![("en", Value::Text("for tests"))])),
    ]);
    metadata.write(&mut out);
    out
}

/// An address as the tree has it: one of IPv4 stands behind 96 bits of zero.
fn bits(address: &str) -> u128 {
    match address.parse().unwrap() {
        IpAddr::V4(ip) => u32::from(ip).into(),
        IpAddr::V6(ip) => ip.into(),
    }
}

fn insert(nodes: &mut Vec<[Record; 2]>, address: u128, length: u8, data: u32) {
    let mut node = 0;
    for bit in (0..length).map(|i| (address >> (127 - i) & 1) as usize) {
        let last = nodes.len() as u32;
        match nodes[node][bit] {
            Record::Node(next) => node = next as usize,
            _ => {
                nodes[node][bit] = Record::Node(last);
                nodes.push([Record::Nothing; 2]);
                node = last as usize;
            }
        }
    }
    // Whatever the next bit is.
    nodes[node] = [Record::Data(data); 2];
}

impl Value {
    fn write(&self, out: &mut Vec<u8>) {
        match self {
            Value::Text(text) => {
                head(out, 2, text.len());
                out.extend_from_slice(text.as_bytes());
            }
            Value::Double(number) => number_of(out, 3, &number.to_be_bytes()),
            Value::U16(number) => number_of(out, 5, &number.to_be_bytes()),
            Value::U32(number) => number_of(out, 6, &number.to_be_bytes()),
            Value::U64(number) => number_of(out, 9, &number.to_be_bytes()),
            Value::Map(entries) => {
                head(out, 7, entries.len());
                for (name, value) in entries {
                    Value::Text(name).write(out);
                    value.write(out);
                }
            }
            Value::List(values) => {
                head(out, 11, values.len());
                values.iter().for_each(|value| value.write(out));
            }
        }
    }
}

fn number_of(out: &mut Vec<u8>, kind: u8, bytes: &[u8]) {
    head(out, kind, bytes.len());
    out.extend_from_slice(bytes);
}

/// Kind and size; kinds above 7 take a second byte, sizes above 28 another one.
fn head(out: &mut Vec<u8>, kind: u8, size: usize) {
    let (short, long) = if size < 29 { (size as u8, None) } else { (29, Some((size - 29) as u8)) };
    out.push(if kind > 7 { short } else { kind << 5 | short });
    out.extend((kind > 7).then(|| kind - 7));
    out.extend(long);
}
