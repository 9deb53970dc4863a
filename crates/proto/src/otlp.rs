//! Spans in the protobuf form of the OpenTelemetry Protocol: the few messages of
//! `opentelemetry/proto/collector/trace/v1` that a server sends.

/// What an attribute says.
#[derive(Clone, Copy, Debug)]
pub enum AttributeValue<'a> {
    /// A text; what is no UTF-8 in it is replaced.
    Text(&'a [u8]),
    /// A number.
    Number(i64),
    /// A list of one text.
    Texts(&'a [u8]),
}

/// One request that was served.
#[derive(Clone, Copy, Debug)]
pub struct TraceSpan<'a> {
    /// The trace that it belongs to.
    pub trace: &'a [u8; 16],
    /// Its own number.
    pub span: &'a [u8; 8],
    /// The span that it was asked by.
    pub parent: Option<&'a [u8; 8]>,
    /// `tracestate`
    pub state: &'a [u8],
    /// What it is called.
    pub name: &'a [u8],
    /// When it began, in nanoseconds since 1970.
    pub start: u64,
    /// When it was over.
    pub end: u64,
    /// It failed.
    pub failed: bool,
    /// As [`Attributes::of_span`] has them.
    pub attributes: &'a Attributes,
}

/// Names and values.
#[derive(Clone, Debug)]
pub struct Attributes {
    field: u32,
    bytes: Vec<u8>,
}

impl Attributes {
    /// None yet.
    pub fn of_span() -> Attributes {
        Attributes { field: 9, bytes: Vec::new() }
    }

    /// One more.
    pub fn add(&mut self, name: &[u8], value: AttributeValue<'_>) {
        message(&mut self.bytes, self.field, |out| {
            text(out, 1, name);
            message(out, 2, |out| match value {
                AttributeValue::Text(value) => text(out, 1, value),
                AttributeValue::Number(n) => number(out, 3, n.cast_unsigned()),
                AttributeValue::Texts(value) => {
                    message(out, 5, |out| message(out, 1, |out| text(out, 1, value)));
                }
            });
        });
    }
}

/// Appends a span to those of a batch.
pub fn write_span(span: &TraceSpan<'_>, out: &mut Vec<u8>) {
    message(out, 2, |out| {
        bytes(out, 1, span.trace);
        bytes(out, 2, span.span);
        text(out, 3, span.state);
        if let Some(parent) = span.parent {
            bytes(out, 4, parent);
        }
        text(out, 5, span.name);
        number(out, 6, SERVER);
        fixed(out, 7, span.start);
        fixed(out, 8, span.end);
        out.extend_from_slice(&span.attributes.bytes);
        if span.failed {
            message(out, 15, |out| number(out, 3, ERROR));
        }
    });
}

/// The server that a batch's spans come from: what stands before them.
#[derive(Clone, Debug)]
pub struct Resource {
    resource: Vec<u8>,
    scope: Vec<u8>,
}

impl Resource {
    /// A server with these attributes. A program of this name and version makes its spans.
    pub fn new<'a>(
        attributes: impl Iterator<Item = (&'a [u8], &'a [u8])>,
        name: &str,
        version: &str,
    ) -> Resource {
        let mut all = Attributes { field: 1, bytes: Vec::new() };
        attributes.for_each(|(name, value)| all.add(name, AttributeValue::Text(value)));
        let (mut resource, mut scope) = (Vec::new(), Vec::new());
        bytes(&mut resource, 1, &all.bytes);
        message(&mut scope, 1, |out| {
            text(out, 1, name.as_bytes());
            text(out, 2, version.as_bytes());
        });
        Resource { resource, scope }
    }

    /// What stands before spans of so many bytes, to be a request to a collector.
    pub fn head(&self, spans: usize) -> Vec<u8> {
        let mut inner = self.resource.clone();
        tag(&mut inner, 2, LENGTH_AND_BYTES);
        varint(&mut inner, (self.scope.len() + spans) as u64);
        inner.extend_from_slice(&self.scope);
        let mut out = Vec::with_capacity(inner.len() + 12);
        tag(&mut out, 1, LENGTH_AND_BYTES);
        varint(&mut out, (inner.len() + spans) as u64);
        out.extend_from_slice(&inner);
        out
    }
}

/// What a collector says of spans that it took: that there are some which it did not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Partly {
    /// How many.
    pub rejected: u64,
    /// Why; without any, what it has to say besides.
    pub why: String,
}

/// Reads a collector's answer, an `ExportTraceServiceResponse`. None is one that is malformed.
pub fn partly(answer: &[u8]) -> Option<Partly> {
    let mut partly = Partly::default();
    fields(answer, |field, value| match (field, value) {
        (1, Field::Bytes(inner)) => fields(inner, |field, value| {
            match (field, value) {
                // A negative number is none.
                (1, Field::Number(n)) => {
                    partly.rejected = u64::try_from(n.cast_signed()).unwrap_or(0)
                }
                (2, Field::Bytes(text)) => partly.why = String::from_utf8_lossy(text).into_owned(),
                _ => {}
            }
            Some(())
        }),
        _ => Some(()),
    })?;
    Some(partly)
}

/// A field's value as it is written.
enum Field<'a> {
    Number(u64),
    Bytes(&'a [u8]),
    /// Any other kind.
    Other,
}

/// Reads a message field by field.
fn fields<'a>(
    mut rest: &'a [u8],
    mut each: impl FnMut(u64, Field<'a>) -> Option<()>,
) -> Option<()> {
    while !rest.is_empty() {
        let tag = read_varint(&mut rest)?;
        let fixed = match tag & 7 {
            0 => {
                each(tag >> 3, Field::Number(read_varint(&mut rest)?))?;
                continue;
            }
            1 => 8,
            2 => usize::try_from(read_varint(&mut rest)?).ok()?,
            5 => 4,
            _ => return None,
        };
        let (value, behind) = rest.split_at_checked(fixed)?;
        rest = behind;
        let value = if tag & 7 == 2 { Field::Bytes(value) } else { Field::Other };
        each(tag >> 3, value)?;
    }
    Some(())
}

fn read_varint(from: &mut &[u8]) -> Option<u64> {
    let mut n = 0;
    for shift in (0..64).step_by(7) {
        let (first, rest) = from.split_first()?;
        *from = rest;
        n |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            return Some(n);
        }
    }
    None
}

/// `SPAN_KIND_SERVER`
const SERVER: u64 = 2;
/// `STATUS_CODE_ERROR`
const ERROR: u64 = 2;

const VARINT: u32 = 0;
const EIGHT_BYTES: u32 = 1;
const LENGTH_AND_BYTES: u32 = 2;

fn tag(out: &mut Vec<u8>, field: u32, kind: u32) {
    varint(out, u64::from(field << 3 | kind));
}

fn varint(out: &mut Vec<u8>, mut n: u64) {
    while n >= 0x80 {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
}

fn number(out: &mut Vec<u8>, field: u32, n: u64) {
    tag(out, field, VARINT);
    varint(out, n);
}

fn fixed(out: &mut Vec<u8>, field: u32, n: u64) {
    tag(out, field, EIGHT_BYTES);
    out.extend_from_slice(&n.to_le_bytes());
}

fn bytes(out: &mut Vec<u8>, field: u32, value: &[u8]) {
    tag(out, field, LENGTH_AND_BYTES);
    varint(out, value.len() as u64);
    out.extend_from_slice(value);
}

/// A string of protobuf is UTF-8.
fn text(out: &mut Vec<u8>, field: u32, value: &[u8]) {
    bytes(out, field, String::from_utf8_lossy(value).as_bytes());
}

/// A message within: its length is known when it has been written.
fn message(out: &mut Vec<u8>, field: u32, write: impl FnOnce(&mut Vec<u8>)) {
    tag(out, field, LENGTH_AND_BYTES);
    let start = out.len();
    write(out);
    let mut length = Vec::with_capacity(4);
    varint(&mut length, (out.len() - start) as u64);
    out.splice(start..start, length);
}

#[cfg(test)]
mod tests {
    use opentelemetry_proto::tonic::collector::trace::v1::{
        ExportTracePartialSuccess, ExportTraceServiceRequest, ExportTraceServiceResponse,
    };
    use opentelemetry_proto::tonic::common::v1::any_value::Value as Read;
    use opentelemetry_proto::tonic::common::v1::{ArrayValue, KeyValue};
    use proptest::prelude::*;
    use prost::Message;

    use super::*;

    fn said(attribute: &KeyValue) -> Option<Read> {
        attribute.value.clone()?.value
    }

    #[test]
    fn answers_that_say_nothing() {
        let (all, text) = (Some(Partly::default()), b"{\"partialSuccess\":{}}");
        assert_eq!((partly(b""), partly(b"\x0a\x00")), (all.clone(), all));
        assert_eq!((partly(text), partly(b"\x0a\x7f")), (None, None));
    }

    fn lossy(bytes: &[u8]) -> String {
        String::from_utf8_lossy(bytes).into_owned()
    }

    proptest! {
        #[test]
        fn what_a_collector_writes_is_read(rejected_spans in any::<i64>(), error_message in any::<String>()) {
            let why = error_message.clone();
            let written = ExportTracePartialSuccess { rejected_spans, error_message };
            let answer = ExportTraceServiceResponse { partial_success: Some(written) };
            let rejected = rejected_spans.max(0).unsigned_abs();
            prop_assert_eq!(partly(&answer.encode_to_vec()), Some(Partly { rejected, why }));
        }

        /// The decoder is that of the OpenTelemetry project's own definitions.
        #[test]
        fn a_collector_reads_what_is_written(
            trace in any::<[u8; 16]>(),
            span in any::<[u8; 8]>(),
            parent in any::<Option<[u8; 8]>>(),
            (state, name, key, value) in any::<(Vec<u8>, Vec<u8>, Vec<u8>, Vec<u8>)>(),
            (start, end, amount) in any::<(u64, u64, i64)>(),
            failed in any::<bool>(),
            count in 0..5usize,
        ) {
            let mut attributes = Attributes::of_span();
            attributes.add(&key, AttributeValue::Text(&value));
            attributes.add(b"n", AttributeValue::Number(amount));
            attributes.add(b"list", AttributeValue::Texts(&value));
            let written = TraceSpan {
                trace: &trace,
                span: &span,
                parent: parent.as_ref(),
                state: &state,
                name: &name,
                start,
                end,
                failed,
                attributes: &attributes,
            };
            let mut spans = Vec::new();
            (0..count).for_each(|_| write_span(&written, &mut spans));
            let source =
                Resource::new([(key.as_slice(), value.as_slice())].into_iter(), "weir", "1.2");
            let request = [source.head(spans.len()), spans].concat();

            let read = ExportTraceServiceRequest::decode(request.as_slice()).unwrap();
            prop_assert_eq!(read.resource_spans.len(), 1);
            let of = &read.resource_spans[0];
            let resource = &of.resource.as_ref().unwrap().attributes;
            prop_assert_eq!(&resource[0].key, &lossy(&key));
            prop_assert_eq!(said(&resource[0]), Some(Read::StringValue(lossy(&value))));
            let scope = of.scope_spans[0].scope.as_ref().unwrap();
            prop_assert_eq!((scope.name.as_str(), scope.version.as_str()), ("weir", "1.2"));
            prop_assert_eq!(of.scope_spans[0].spans.len(), count);
            for read in &of.scope_spans[0].spans {
                prop_assert_eq!(&read.trace_id, &trace);
                prop_assert_eq!(&read.span_id, &span);
                prop_assert_eq!(&read.parent_span_id, &parent.map(Vec::from).unwrap_or_default());
                prop_assert_eq!(&read.trace_state, &lossy(&state));
                prop_assert_eq!(&read.name, &lossy(&name));
                prop_assert_eq!(read.kind, 2);
                prop_assert_eq!((read.start_time_unix_nano, read.end_time_unix_nano), (start, end));
                let status = read.status.as_ref().map(|status| status.code);
                prop_assert_eq!(status, failed.then_some(2));
                prop_assert_eq!(&read.attributes[0].key, &lossy(&key));
                prop_assert_eq!(said(&read.attributes[0]), Some(Read::StringValue(lossy(&value))));
                prop_assert_eq!(said(&read.attributes[1]), Some(Read::IntValue(amount)));
                let Some(Read::ArrayValue(ArrayValue { values })) = said(&read.attributes[2])
                else {
                    return Err(TestCaseError::fail("no list"));
                };
                prop_assert_eq!(&values[0].value, &Some(Read::StringValue(lossy(&value))));
            }
        }
    }
}
