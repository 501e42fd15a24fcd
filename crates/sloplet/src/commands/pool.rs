//! `sloplet pool`

use hyper::Method;
use serde_json::{Map, Value, json};

use crate::api::{Server, encode};
use crate::cli::{Pool, SetPool};
use crate::table::print;

pub async fn run(server: &Server, command: Pool) -> anyhow::Result<u8> {
    match command {
        Pool::Set(options) => {
            let path = format!("/pools/{}", encode(&options.name));
            let as_json = options.json;
            let made = server.ask(Method::PUT, &path, Some(&request(*options))).await?;
            match as_json {
                true => show(&made, true)?,
                // It is being filled: 'pool show' tells.
                false => say!("{}", text(&made["name"])),
            }
        }
        Pool::Ls { json } => {
            let found = server.get("/pools").await?;
            if json {
                say!("{}", serde_json::to_string_pretty(&found)?);
            } else {
                let rows: Vec<[String; 8]> = found.as_array().into_iter().flatten().map(row).collect();
                print(["NAME", "IMAGE", "WALL", "READY", "WANTED", "BECAUSE OF", "IN USE", "HITS"], &rows);
            }
        }
        Pool::Show { name, json } => show(&server.get(&format!("/pools/{}", encode(&name))).await?, json)?,
        Pool::Fill { names, timeout } => {
            for name in names {
                let body = json!({"timeout": timeout.to_string()});
                server.post(&format!("/pools/{}/fill", encode(&name)), &body).await?;
            }
        }
        Pool::Drain { names } => {
            for name in names {
                server.post(&format!("/pools/{}/drain", encode(&name)), &json!({})).await?;
            }
        }
        Pool::Rm { names } => {
            for name in names {
                server.delete(&format!("/pools/{}", encode(&name))).await?;
            }
        }
    }
    Ok(0)
}

/// The same names as in the API; what was not said is left out.
fn request(options: SetPool) -> Value {
    let mut fields = Map::new();
    let mut set = |name: &str, value: Option<Value>| {
        if let Some(value) = value {
            fields.insert(name.to_owned(), value);
        }
    };
    let flag = |said: bool, value: Value| said.then_some(value);
    set("image", options.image.map(Into::into));
    set("isolation", options.isolation.map(|level| level.name().into()));
    set("driver", options.driver.map(Into::into));
    set("memory", options.memory.map(|size| size.to_string().into()));
    set("cpus", options.cpus.map(|cpus| f64::from(cpus).into()));
    set("pids", options.pids.map(Into::into));
    set("disk", options.disk.map(|size| size.to_string().into()));
    set("user", options.user.map(Into::into));
    set("hostname", options.hostname.map(Into::into));
    set("best_effort", flag(options.best_effort, true.into()));
    set("target_ready", options.target.map(Into::into));
    set("max_ready", options.max.map(Into::into));
    set("min_ready", options.min.map(Into::into));
    set("adaptive", flag(options.fixed, false.into()));
    for (name, span) in [
        ("idle_timeout", options.idle_timeout),
        ("scale_down_delay", options.scale_down_delay),
        ("cooldown_after_acquire", options.cooldown),
        ("max_warm_age", options.max_age),
        ("health_check_interval", options.health_check),
    ] {
        set(name, span.map(|span| span.to_string().into()));
    }
    set("on_empty", flag(options.fail_when_empty, "fail".into()));
    set("max_total", options.max_total.map(Into::into));
    set("max_cost_per_hour", options.max_cost_per_hour.map(Into::into));
    set("max_cost_per_day", options.max_cost_per_day.map(Into::into));
    set("secrets", flag(options.secrets, true.into()));
    fields.into()
}

fn show(pool: &Value, as_json: bool) -> anyhow::Result<()> {
    if as_json {
        say!("{}", serde_json::to_string_pretty(pool)?);
        return Ok(());
    }
    let (config, metrics, sizing) = (&pool["config"], &pool["metrics"], &pool["sizing"]);
    let number = |value: &Value| value.as_f64().map_or_else(|| "-".to_owned(), |number| format!("{number:.2}"));
    say!("{} ({}, {})", text(&pool["name"]), text(&pool["image"]), wall(pool));
    say!("  machines   {} ready, {} being made, {} in use", metrics["ready"], metrics["creating"], metrics["in_use"]);
    let (target, most) = (&config["target_ready"], &config["max_ready"]);
    match sizing.is_object() {
        true => say!("  wanted     {} because of {} (target {target}, most {most})", sizing["wanted"], bound(pool)),
        false => say!("  wanted     not looked at yet (target {target}, most {most})"),
    }
    let (demand, headroom) = (number(&sizing["demand_per_second"]), number(&sizing["headroom"]));
    say!("  demand     {demand} a second; {} expected, {headroom} for bursts", number(&sizing["expected"]));
    let (hits, cold) = (&metrics["acquires_from_pool"], &metrics["acquires_cold_start"]);
    say!("  claims     {hits} from the pool, {cold} made, {} refused", metrics["acquires_refused"]);
    for (reason, count) in metrics["misfits"].as_object().into_iter().flatten() {
        say!("             {count} could not be late-bound: {reason}");
    }
    let (dead, old) = (&metrics["health_check_removals"], &metrics["expired"]);
    say!("  replaced   {dead} not well, {old} too old; {} could not be made", metrics["failed_creates"]);
    if metrics["price_per_hour"].as_f64().is_some_and(|price| price > 0.0) {
        let (price, today) = (number(&metrics["price_per_hour"]), number(&metrics["spent_today"]));
        say!("  costs      ${price} an hour for each; ${today} today");
    }
    if let Some(error) = pool["last_error"].as_str() {
        say!("  failing    {error}");
    }
    Ok(())
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or("-").to_owned()
}

fn wall(pool: &Value) -> String {
    text(if pool["driver"].is_string() { &pool["driver"] } else { &pool["isolation"] })
}

fn bound(pool: &Value) -> String {
    text(&pool["sizing"]["bound"])
}

fn row(pool: &Value) -> [String; 8] {
    let metrics = &pool["metrics"];
    let hits = match metrics["total_acquires"].as_u64() {
        Some(0) | None => "-".to_owned(),
        Some(_) => format!("{:.0}%", metrics["pool_hit_rate"].as_f64().unwrap_or(0.0) * 100.0),
    };
    let wanted = if pool["sizing"].is_object() { pool["sizing"]["wanted"].to_string() } else { "-".to_owned() };
    [
        text(&pool["name"]),
        text(&pool["image"]),
        wall(pool),
        metrics["ready"].to_string(),
        wanted,
        bound(pool),
        metrics["in_use"].to_string(),
        hits,
    ]
}
