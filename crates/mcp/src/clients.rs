//! What clients want to have in their configuration.

use std::str::FromStr;

use serde_json::{Value, json};

/// A client whose configuration is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Client {
    /// Claude Code: `.mcp.json`.
    Claude,
    /// Claude Desktop: `claude_desktop_config.json`.
    ClaudeDesktop,
    /// Cursor: `.cursor/mcp.json`.
    Cursor,
    /// VS Code: `.vscode/mcp.json`.
    Vscode,
    /// Codex: `~/.codex/config.toml`.
    Codex,
    /// Zed: `settings.json`.
    Zed,
    /// Gemini CLI: `~/.gemini/settings.json`.
    Gemini,
    /// Windsurf: `~/.codeium/windsurf/mcp_config.json`.
    Windsurf,
}

const ALL: [(&str, Client, &str); 8] = [
    ("claude", Client::Claude, ".mcp.json in the project"),
    ("claude-desktop", Client::ClaudeDesktop, "claude_desktop_config.json"),
    ("codex", Client::Codex, "~/.codex/config.toml"),
    ("cursor", Client::Cursor, ".cursor/mcp.json in the project, or ~/.cursor/mcp.json"),
    ("gemini", Client::Gemini, "~/.gemini/settings.json"),
    ("vscode", Client::Vscode, ".vscode/mcp.json in the project"),
    ("windsurf", Client::Windsurf, "~/.codeium/windsurf/mcp_config.json"),
    ("zed", Client::Zed, "settings.json"),
];

impl FromStr for Client {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = ALL.iter().find(|(name, ..)| *name == text).map(|(_, client, _)| *client);
        let names: Vec<&str> = ALL.iter().map(|(name, ..)| *name).collect();
        found.ok_or_else(|| format!("known are {}", names.join(", ")))
    }
}

impl Client {
    /// Where its configuration is.
    pub fn file(self) -> &'static str {
        ALL.iter().find(|(_, client, _)| *client == self).map_or("", |(.., file)| file)
    }

    /// What is to be in it, so that it starts this program with these arguments.
    pub fn config(self, program: &str, arguments: &[String]) -> String {
        let plain = json!({"command": program, "args": arguments});
        let under = |name: &str, one: Value| json!({name: {"sloplet": one}});
        let value = match self {
            Self::Claude | Self::Vscode => {
                let typed = json!({"type": "stdio", "command": program, "args": arguments});
                under(if self == Self::Vscode { "servers" } else { "mcpServers" }, typed)
            }
            Self::ClaudeDesktop | Self::Cursor | Self::Gemini | Self::Windsurf => under("mcpServers", plain),
            Self::Zed => under("context_servers", plain),
            Self::Codex => {
                let table = under("mcp_servers", plain);
                return toml::to_string(&table).unwrap_or_default().trim_end().to_owned();
            }
        };
        serde_json::to_string_pretty(&value).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_configuration_can_be_read_and_starts_us() {
        let arguments = ["mcp".to_owned(), "--allow".to_owned(), "api.github.com \"quoted\"".to_owned()];
        for (name, client, _) in ALL {
            assert_eq!(name.parse::<Client>(), Ok(client));
            let text = client.config("/usr/bin/sloplet", &arguments);
            let value: Value = match client {
                Client::Codex => toml::from_str(&text).unwrap(),
                _ => serde_json::from_str(&text).unwrap(),
            };
            let top = value.as_object().unwrap().values().next().unwrap();
            assert_eq!(top["sloplet"]["command"], "/usr/bin/sloplet", "{text}");
            assert_eq!(top["sloplet"]["args"], json!(arguments), "{text}");
        }
        assert!("emacs".parse::<Client>().unwrap_err().contains("vscode"));
    }
}
