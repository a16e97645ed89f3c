//! The bytes of OTLP, read by the numbers of its fields and not with the code that wrote them.

#[derive(Clone, Debug, Default)]
pub(crate) struct Span {
    pub(crate) name: String,
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) status: u64,
    pub(crate) attributes: Vec<(String, String)>,
    pub(crate) resource: Vec<(String, String)>,
}

impl Span {
    pub(crate) fn attribute(&self, key: &str) -> &str {
        self.attributes.iter().find(|(name, _)| name == key).map_or("", |(_, value)| value)
    }
}

/// A metric with what its points say.
#[derive(Clone, Debug, Default)]
pub(crate) struct Metric {
    pub(crate) name: String,
    pub(crate) description: String,
    pub(crate) unit: String,
    pub(crate) is_monotonic: bool,
    /// Of a sum.
    pub(crate) values: Vec<f64>,
    /// Of a distribution.
    pub(crate) counts: Vec<u64>,
    pub(crate) bounds: Vec<f64>,
    pub(crate) attributes: Vec<(String, String)>,
}

enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

impl<'a> Value<'a> {
    fn bytes(&self) -> &'a [u8] {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Number(number) => panic!("{number} where bytes are"),
        }
    }

    fn number(&self) -> u64 {
        match self {
            Self::Number(number) => *number,
            Self::Bytes(_) => panic!("bytes where a number is"),
        }
    }

    fn text(&self) -> String {
        String::from_utf8(self.bytes().to_vec()).unwrap()
    }
}

fn varint(bytes: &mut &[u8]) -> u64 {
    let (mut value, mut shift) = (0, 0);
    loop {
        let (first, rest) = bytes.split_first().expect("a number is cut off");
        *bytes = rest;
        value |= u64::from(first & 0x7f) << shift;
        if first & 0x80 == 0 {
            return value;
        }
        shift += 7;
    }
}

/// A number of so many bytes, the lowest first.
fn fixed(bytes: &mut &[u8], length: usize) -> u64 {
    let (part, rest) = bytes.split_at(length);
    *bytes = rest;
    part.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// The fields of a message: number and value, in their order.
fn fields(mut bytes: &[u8]) -> Vec<(u64, Value<'_>)> {
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let tag = varint(&mut bytes);
        let value = match tag & 7 {
            0 => Value::Number(varint(&mut bytes)),
            1 => Value::Number(fixed(&mut bytes, 8)),
            5 => Value::Number(fixed(&mut bytes, 4)),
            2 => {
                let length = varint(&mut bytes) as usize;
                let (part, rest) = bytes.split_at(length);
                bytes = rest;
                Value::Bytes(part)
            }
            other => panic!("no such kind of field: {other}"),
        };
        found.push((tag >> 3, value));
    }
    found
}

/// All messages in the fields of this number.
fn all(bytes: &[u8], number: u64) -> Vec<&[u8]> {
    fields(bytes).into_iter().filter(|(of, _)| *of == number).map(|(_, value)| value.bytes()).collect()
}

fn attribute(bytes: &[u8]) -> (String, String) {
    let (mut key, mut text) = (String::new(), String::new());
    for (number, value) in fields(bytes) {
        match number {
            1 => key = value.text(),
            2 => {
                for (kind, value) in fields(value.bytes()) {
                    text = match kind {
                        1 => value.text(),
                        2 => (value.number() != 0).to_string(),
                        3 => (value.number() as i64).to_string(),
                        4 => f64::from_bits(value.number()).to_string(),
                        _ => "?".to_owned(),
                    };
                }
            }
            _ => {}
        }
    }
    (key, text)
}

/// Each part of a scope, with the attributes of its resource.
fn parts(body: &[u8], each: impl Fn(&[u8], Vec<(String, String)>)) {
    for of_resource in all(body, 1) {
        let resource: Vec<_> = all(of_resource, 1).into_iter().flat_map(|one| all(one, 1)).map(attribute).collect();
        for scope in all(of_resource, 2) {
            for part in all(scope, 2) {
                each(part, resource.clone());
            }
        }
    }
}

pub(crate) fn spans(body: &[u8]) -> Vec<Span> {
    let found = std::cell::RefCell::new(Vec::new());
    parts(body, |bytes, resource| {
        let mut span = Span { resource, ..Span::default() };
        for (number, value) in fields(bytes) {
            match number {
                5 => span.name = value.text(),
                7 => span.start = value.number(),
                8 => span.end = value.number(),
                9 => span.attributes.push(attribute(value.bytes())),
                15 => {
                    let code = fields(value.bytes()).into_iter().find(|(number, _)| *number == 3);
                    span.status = code.map_or(0, |(_, value)| value.number());
                }
                _ => {}
            }
        }
        found.borrow_mut().push(span);
    });
    found.into_inner()
}

pub(crate) fn metrics(body: &[u8]) -> Vec<Metric> {
    let found = std::cell::RefCell::new(Vec::new());
    parts(body, |bytes, _| {
        let mut metric = Metric::default();
        for (number, value) in fields(bytes) {
            match number {
                1 => metric.name = value.text(),
                2 => metric.description = value.text(),
                3 => metric.unit = value.text(),
                7 => sum(value.bytes(), &mut metric),
                9 => all(value.bytes(), 1).into_iter().for_each(|point| distribution(point, &mut metric)),
                _ => {}
            }
        }
        found.borrow_mut().push(metric);
    });
    found.into_inner()
}

fn sum(bytes: &[u8], metric: &mut Metric) {
    for (number, value) in fields(bytes) {
        match number {
            1 => {
                let mut point = 0.0;
                for (number, value) in fields(value.bytes()) {
                    match number {
                        4 => point = f64::from_bits(value.number()),
                        6 => point = value.number() as i64 as f64,
                        7 => metric.attributes.push(attribute(value.bytes())),
                        _ => {}
                    }
                }
                metric.values.push(point);
            }
            3 => metric.is_monotonic = value.number() != 0,
            _ => {}
        }
    }
}

fn distribution(bytes: &[u8], metric: &mut Metric) {
    for (number, value) in fields(bytes) {
        match number {
            4 => metric.counts.push(value.number()),
            7 => {
                let bounds = value.bytes().chunks_exact(8);
                metric.bounds = bounds.map(|bytes| f64::from_le_bytes(bytes.try_into().unwrap())).collect();
            }
            9 => metric.attributes.push(attribute(value.bytes())),
            _ => {}
        }
    }
}
