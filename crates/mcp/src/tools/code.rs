//! Pieces of code.

use rmcp::model::ContentBlock;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use sloplet_remote::{encode, full};

use super::{exec, interpreter};
use crate::answer::Answer;
use crate::call::Call;
use crate::catalogue::{About, Effect, Entry};
use crate::failure::Failure;

/// The tools of this file.
pub fn entries() -> Vec<Entry> {
    let about = About {
        name: "run_code",
        group: "code",
        title: "Run code",
        description: "Run a piece of code in the sandbox and get what it prints. With the image code-interpreter variables \
                      stay between calls, the value of the last expression is told, and pictures are shown; else each call \
                      is a program of its own (print what you want to see).",
        effect: Effect::Runs,
        begins: true,
    };
    vec![Entry::new(about, run_code)]
}

/// Arguments of `run_code`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RunCode {
    /// The code.
    pub code: String,
    /// Its language; python if left out.
    #[serde(default)]
    pub language: Language,
    /// It is stopped after so many seconds: 1 to 3600, 120 if left out.
    #[schemars(range(min = 1, max = 3600))]
    pub timeout_seconds: Option<u32>,
}

/// A language.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Language {
    /// Python 3.
    #[default]
    Python,
    /// Bash.
    Bash,
    /// JavaScript (Node.js).
    Javascript,
    /// TypeScript; only with the image code-interpreter.
    Typescript,
}

impl Language {
    /// Its name for the interpreter.
    pub fn name(self) -> &'static str {
        match self {
            Self::Python => "python",
            Self::Bash => "bash",
            Self::Javascript => "javascript",
            Self::Typescript => "typescript",
        }
    }
}

/// What came of a piece of code.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub struct Ran {
    /// Whether it came to its end without an error.
    pub ok: bool,
    /// What it printed.
    pub stdout: String,
    /// What it printed to standard error.
    pub stderr: String,
    /// The value of the last expression, as text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<String>,
    /// The error that ended it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The exit code, where it was a program of its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
    /// Pictures that follow in the answer.
    pub pictures: usize,
    /// Whether variables stay for the next call.
    pub stateful: bool,
}

async fn run_code(call: Call, asked: RunCode) -> Result<Answer<Ran>, Failure> {
    if asked.code.trim().is_empty() {
        return Err(Failure::new("code: there is nothing to run"));
    }
    call.sandbox().await?;
    if call.conversation.is_stateful() {
        let (text, value, pictures) = interpreter::execute(&call, &asked).await?;
        let more = pictures.into_iter().map(|(kind, data)| ContentBlock::image(data, kind)).collect();
        return Ok(Answer { text, value, more });
    }
    let (program, end) = match asked.language {
        Language::Python => ("python3", "py"),
        Language::Bash => ("bash", "sh"),
        Language::Javascript => ("node", "js"),
        Language::Typescript => {
            let failure =
                Failure::new("typescript needs the image code-interpreter, which this sandbox is not made of");
            return Err(failure.hint("Use javascript, or ask the user to start with --image code-interpreter."));
        }
    };
    let path = format!("/tmp/sloplet-code/{}.{end}", call.conversation.number());
    let file = call.path(&format!("/files?path={}", encode(&path))).await?;
    call.server().send(hyper::Method::PUT, &file, "application/octet-stream", full(asked.code)).await?;
    let answer = exec::run(&call, json!({"command": [program, path]}), None, asked.timeout_seconds).await;
    let answer = answer.map_err(|failure| match failure.status {
        Some(400 | 404 | 422) if failure.what.contains(program) => failure
            .hint(format!("This image has no {program}. Try another language, or ask the user for another --image.")),
        _ => failure,
    })?;
    let value = Ran {
        ok: answer.value.exit_code == 0,
        exit_code: Some(answer.value.exit_code),
        stdout: answer.value.stdout,
        stderr: answer.value.stderr,
        ..Ran::default()
    };
    Ok(Answer { text: answer.text, value, more: answer.more })
}
