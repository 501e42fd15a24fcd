//! What a tool answers: text for every client, structure for those that read it, pictures.

use rmcp::model::{CallToolResult, ContentBlock};
use serde::Serialize;
use serde_json::Value;

use crate::failure::Failure;

/// Bytes of text in one answer, about: what a model can make use of at once.
pub const TEXT: usize = 48 * 1024;

/// What a tool answers.
pub struct Answer<T> {
    /// For the model.
    pub text: String,
    /// The same for programs.
    pub value: T,
    /// Pictures and the like.
    pub more: Vec<ContentBlock>,
}

impl<T: Serialize> Answer<T> {
    /// Text and structure.
    pub fn new(text: impl Into<String>, value: T) -> Self {
        Self { text: text.into(), value, more: Vec::new() }
    }

    /// The same for any tool.
    pub fn erased(self) -> Result<Answer<Value>, Failure> {
        let value = serde_json::to_value(self.value).map_err(|error| Failure::new(error.to_string()))?;
        Ok(Answer { text: self.text, value, more: self.more })
    }
}

impl Answer<Value> {
    /// As the protocol has it; `sandbox` says where it happened.
    pub fn into_result(mut self, sandbox: Option<String>, told: bool) -> CallToolResult {
        if let (Some(sandbox), Some(fields)) = (&sandbox, self.value.as_object_mut()) {
            fields.insert("sandbox".into(), sandbox.as_str().into());
        }
        let mut content = vec![ContentBlock::text(self.text)];
        if let Some(sandbox) = sandbox.filter(|_| told) {
            content.push(ContentBlock::text(format!("sandbox: {sandbox} (pass it as \"sandbox\" to go on there)")));
        }
        content.append(&mut self.more);
        let mut result = CallToolResult::success(content);
        result.structured_content = Some(self.value);
        result
    }
}

/// Text out of bytes that somebody inside made: whatever is not UTF-8 is replaced.
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The beginning and the end of something long, with what was left out said in between; `None` if it is short enough.
pub fn shortened(bytes: &[u8], most: usize) -> Option<String> {
    if bytes.len() <= most {
        return None;
    }
    let (head, tail) = (floor(bytes, most / 2), ceiling(bytes, bytes.len() - most / 2));
    let left_out = tail - head;
    Some(format!("{}\n[… {left_out} bytes left out …]\n{}", text(&bytes[..head]), text(&bytes[tail..])))
}

/// Where a character begins, at or before `at`.
fn floor(bytes: &[u8], at: usize) -> usize {
    (at.saturating_sub(3)..=at).rev().find(|at| is_boundary(bytes, *at)).unwrap_or(at)
}

/// Where a character begins, at or after `at`.
fn ceiling(bytes: &[u8], at: usize) -> usize {
    (at..=(at + 3).min(bytes.len())).find(|at| is_boundary(bytes, *at)).unwrap_or(at)
}

fn is_boundary(bytes: &[u8], at: usize) -> bool {
    bytes.get(at).is_none_or(|byte| byte & 0xc0 != 0x80)
}

/// One line that says little and steers nothing: for progress.
pub fn line(bytes: &[u8], most: usize) -> String {
    let text = text(bytes);
    let last = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
    last.chars().filter(|c| !c.is_control()).take(most).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_long_keeps_its_ends_and_whole_characters() {
        assert_eq!(shortened(b"short", 10), None);
        let long = "ä".repeat(1000);
        let said = shortened(long.as_bytes(), 101).unwrap();
        assert!(said.contains("bytes left out") && !said.contains('\u{fffd}'), "{said}");
        assert!(said.starts_with('ä') && said.ends_with('ä') && said.len() < 200);
        // Not text at all: nothing breaks.
        assert!(shortened(&[0x80; 1000], 100).is_some());
    }

    #[test]
    fn a_line_of_progress_has_no_controls() {
        assert_eq!(line(b"one\ntwo\x1b[31m\x07 three\n\n", 9), "two[31m t");
        assert_eq!(line(b"", 9), "");
    }
}
