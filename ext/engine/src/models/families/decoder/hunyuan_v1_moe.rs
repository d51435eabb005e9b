use super::*;

pub const FAMILY: Family<DecoderConfig> = Family {
    name: "hunyuan_v1_moe",
    matches: types(&["hunyuan_v1_moe"]),
    config: |raw| {
        let raw = &with_single_numbers(raw)?;
        let mut config = hunyuan_v1_dense::config(raw)?;
        let given = experts(raw, config.layer_count, true, Shared::Plain)?;
        config.experts = given.map(|experts| Experts {
            normalize: true,
            ..experts
        });
        Ok(config)
    },
    names: |_| Names {
        router: "mlp.gate.wg",
        shared_gate: "mlp.shared_mlp.gate_proj",
        shared_up: "mlp.shared_mlp.up_proj",
        shared_down: "mlp.shared_mlp.down_proj",
        ..hunyuan_v1_dense::NAMES
    },
    gguf: gguf("hunyuan-moe", |file| file.like(FAMILY.config, &[])),
};

/// Published files give one number for each layer; those of all layers are the same.
fn with_single_numbers(raw: &RawConfig) -> Result<RawConfig> {
    let mut single = raw.clone();
    for key in [
        "moe_topk",
        "num_experts",
        "num_shared_expert",
        "moe_intermediate_size",
    ] {
        if !raw.get(key).is_some_and(serde_json::Value::is_array) {
            continue;
        }
        let numbers = raw.opt_integers(key)?.unwrap_or_default();
        let Some(first) = numbers
            .first()
            .filter(|one| numbers.iter().all(|it| it == *one))
        else {
            let reason = format!("{key} that differs from layer to layer is not supported");
            return Err(Error::unsupported(raw.file(), reason));
        };
        single = single.with(json!({ (key): first }));
    }
    Ok(single)
}
