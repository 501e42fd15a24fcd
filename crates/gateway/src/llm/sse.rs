//! Server-sent events, taken out of a stream of bytes.

/// Longest event that is read. The last one of a Responses stream repeats the whole answer.
const LONGEST: usize = 8 << 20;

/// Takes the data of events out of a stream.
#[derive(Debug, Default)]
pub(crate) struct Sse {
    line: Vec<u8>,
    data: Vec<u8>,
    /// An event was too long to be read.
    pub overflowed: bool,
}

impl Sse {
    /// Takes a piece; calls `event` with the data of each event that is complete.
    pub fn push(&mut self, piece: &[u8], mut event: impl FnMut(&[u8])) {
        for part in piece.split_inclusive(|&byte| byte == b'\n') {
            if self.line.len() + part.len() > LONGEST {
                self.overflowed = true;
                self.line.clear();
                self.data.clear();
                continue;
            }
            self.line.extend_from_slice(part);
            if self.line.last() == Some(&b'\n') {
                self.end_of_line(&mut event);
            }
        }
    }

    /// The stream is over: some leave out the last empty line.
    pub fn finish(&mut self, mut event: impl FnMut(&[u8])) {
        self.end_of_line(&mut event);
        if !self.data.is_empty() {
            event(&self.data);
        }
    }

    fn end_of_line(&mut self, event: &mut impl FnMut(&[u8])) {
        while self.line.last().is_some_and(|byte| matches!(byte, b'\n' | b'\r')) {
            self.line.pop();
        }
        if self.line.is_empty() {
            if !self.data.is_empty() {
                event(&self.data);
            }
            self.data.clear();
        } else if let Some(data) = self.line.strip_prefix(b"data:") {
            if self.data.len() + data.len() > LONGEST {
                self.overflowed = true;
            } else {
                self.data.extend_from_slice(data.strip_prefix(b" ").unwrap_or(data));
            }
        }
        self.line.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_found_across_every_border() {
        let stream = b"event: a\r\ndata: {\"x\":1}\r\n\r\n: ping\n\ndata:two\n\ndata: last";
        for size in 1..=stream.len() {
            let (mut sse, mut events) = (Sse::default(), Vec::new());
            for piece in stream.chunks(size) {
                sse.push(piece, |data| events.push(String::from_utf8(data.to_vec()).unwrap()));
            }
            sse.finish(|data| events.push(String::from_utf8(data.to_vec()).unwrap()));
            assert_eq!(events, ["{\"x\":1}", "two", "last"], "in pieces of {size}");
        }
    }

    #[test]
    fn an_endless_line_takes_no_memory() {
        let mut sse = Sse::default();
        for _ in 0..20 {
            sse.push(&[b'x'; 1 << 20], |_| {});
        }
        assert!(sse.overflowed && sse.line.len() <= LONGEST);
    }
}
