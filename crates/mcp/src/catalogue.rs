//! The tools there are.

use std::pin::Pin;

use rmcp::handler::server::common::{schema_for_input, schema_for_output};
use rmcp::model::{JsonObject, Tool, ToolAnnotations};
use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::answer::Answer;
use crate::call::Call;
use crate::failure::Failure;
use crate::tools;

/// A call under way.
pub type Running = Pin<Box<dyn Future<Output = Result<Answer<Value>, Failure>> + Send>>;

/// A tool, and what it needs.
pub struct Entry {
    /// Its name.
    pub name: &'static str,
    /// The group it is granted with.
    pub group: &'static str,
    /// Whether it changes nothing, neither inside nor on the host.
    pub reads: bool,
    /// Whether it makes sense in a sandbox that nobody has used yet.
    pub begins: bool,
    /// As clients see it.
    pub tool: Tool,
    run: Box<dyn Fn(Call, JsonObject) -> Running + Send + Sync>,
}

/// What is said about a tool.
pub struct About {
    /// Its name.
    pub name: &'static str,
    /// The group it is granted with.
    pub group: &'static str,
    /// Its name for people.
    pub title: &'static str,
    /// What it does, for the model.
    pub description: &'static str,
    /// What it may change.
    pub effect: Effect,
    /// Whether it makes sense in a sandbox that nobody has used yet.
    pub begins: bool,
}

/// What a tool may change.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Nothing.
    Reads,
    /// It adds something.
    Adds,
    /// It may change or remove what is there.
    Changes,
    /// Whatever a program does, inside and with what it may reach outside.
    Runs,
}

impl Entry {
    /// A tool of typed arguments and a typed answer.
    pub fn new<A, T, F, R>(about: About, run: F) -> Self
    where
        A: DeserializeOwned + JsonSchema + 'static,
        T: Serialize + JsonSchema + 'static,
        F: Fn(Call, A) -> R + Send + Sync + 'static,
        R: Future<Output = Result<Answer<T>, Failure>> + Send + 'static,
    {
        let About { name, group, title, description, effect, begins } = about;
        let input = schema_for_input::<A>().map(|schema| (*schema).clone()).unwrap_or_default();
        let output = (*schema_for_output::<T>()).clone();
        let annotations = ToolAnnotations::with_title(title)
            .read_only(effect == Effect::Reads)
            .destructive(matches!(effect, Effect::Changes | Effect::Runs))
            .idempotent(effect == Effect::Reads)
            .open_world(effect == Effect::Runs);
        let (input, output) = (plain(input), plain(output));
        let tool = Tool::new(name, description, with_sandbox(input, ASKED))
            .with_title(title)
            .with_raw_output_schema(with_sandbox(output, TOLD).into())
            .with_annotations(annotations);
        let run = move |call: Call, arguments: JsonObject| -> Running {
            match serde_json::from_value::<A>(arguments.into()) {
                Ok(arguments) => {
                    let running = run(call, arguments);
                    Box::pin(async move { running.await?.erased() })
                }
                Err(error) => {
                    let failure = Failure::new(format!("the arguments of {name} do not fit: {error}"));
                    Box::pin(std::future::ready(Err(failure.hint("See the tool's input schema."))))
                }
            }
        };
        Self { name, group, reads: effect == Effect::Reads, begins, tool, run: Box::new(run) }
    }

    /// Carries a call out.
    pub fn run(&self, call: Call, arguments: JsonObject) -> Running {
        (self.run)(call, arguments)
    }
}

/// Without formats that JSON Schema does not know: `uint32` and the like, which some clients refuse. Bounds say the same.
fn plain(schema: JsonObject) -> JsonObject {
    fn walk(value: &mut Value) {
        match value {
            Value::Object(fields) => {
                let rust = |format: &Value| {
                    format.as_str().is_some_and(|name| name.trim_start_matches('u').starts_with("int"))
                };
                // Not a property that is called so.
                if fields.get("format").is_some_and(rust) {
                    fields.remove("format");
                }
                fields.values_mut().for_each(walk);
            }
            Value::Array(items) => items.iter_mut().for_each(walk),
            _ => {}
        }
    }
    let mut schema = Value::Object(schema);
    walk(&mut schema);
    if let Value::Object(schema) = schema { schema } else { JsonObject::new() }
}

const ASKED: &str = "Which sandbox, as an earlier answer named it. Leave it out to use this conversation's own.";
const TOLD: &str = "The sandbox where it happened.";

/// Every tool takes and tells the sandbox: clients without sessions have no other way to say which.
fn with_sandbox(mut schema: JsonObject, description: &str) -> JsonObject {
    let property = json!({"type": "string", "description": description});
    match schema.get_mut("properties").and_then(Value::as_object_mut) {
        Some(properties) => drop(properties.insert("sandbox".into(), property)),
        None => drop(schema.insert("properties".into(), json!({"sandbox": property}))),
    }
    schema
}

/// All tools, by group.
pub fn all() -> Vec<Entry> {
    let mut entries = Vec::new();
    entries.extend(tools::code::entries());
    entries.extend(tools::exec::entries());
    entries.extend(tools::processes::entries());
    entries.extend(tools::files::entries());
    entries.extend(tools::search::entries());
    entries.extend(tools::sharing::entries());
    entries.extend(tools::ports::entries());
    entries.extend(tools::snapshots::entries());
    entries.extend(tools::network::entries());
    entries.extend(tools::info::entries());
    entries
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemas_have_no_formats_that_clients_do_not_know() {
        for entry in all() {
            let text = json!([entry.tool.input_schema, entry.tool.output_schema]).to_string();
            assert!(
                !text.contains("\"format\":\"uint") && !text.contains("\"format\":\"int"),
                "{}: {text}",
                entry.name
            );
        }
    }
}
