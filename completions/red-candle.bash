# bash completion for red-candle; source it, or put it where bash-completion looks.
# Written by rake completions.
_red_candle() {
  local word=${COMP_WORDS[COMP_CWORD]} verb=${COMP_WORDS[1]} before=${COMP_WORDS[COMP_CWORD-1]} choices
  if [ "$COMP_CWORD" = 1 ]; then
    choices="help chat run embed rerank transcribe detect read segment depth classify entities search serve mcp worker pull lock quantize imatrix convert perplexity pack rm ps models info doctor bench version"
  else
    case $verb:$before in
      run:--task) choices="translate summarize" ;;
      embed:--format) choices="jsonl csv packed" ;;
      rerank:--format) choices="jsonl csv" ;;
      transcribe:--format) choices="txt srt vtt json" ;;
      read:--format) choices="text markdown" ;;
      classify:--format) choices="jsonl csv" ;;
      entities:--format) choices="jsonl csv" ;;
      entities:--aggregation) choices="none simple first average max" ;;
      convert:--dtype) choices="f32 f16 bf16" ;;
      help:*) choices="chat run embed rerank transcribe detect read segment depth classify entities search serve mcp worker pull lock quantize imatrix convert perplexity pack rm ps models info doctor bench version" ;;
      chat:*) choices="--max-tokens --temperature --top-p --top-k --seed --system --device --gpu-layers" ;;
      run:*) choices="--model --raw --schema --image --task --from --to --max-tokens --temperature --top-p --top-k --seed --system --device --gpu-layers --json" ;;
      embed:*) choices="--model --format --dimensions --prompt-name --json --output --field --device" ;;
      rerank:*) choices="--model --top --format --output --field --device --json" ;;
      transcribe:*) choices="--model --format --language --translate --words --prompt --hotwords --vocabulary --num-beams --output --json --device" ;;
      detect:*) choices="--model --threshold --labels --output --json --device" ;;
      read:*) choices="--model --format --task --text --prompt --max-tokens --output --json --device" ;;
      segment:*) choices="--model --labels --output --json --device" ;;
      depth:*) choices="--model --output --json --device" ;;
      classify:*) choices="--model --format --top --labels --json --output --field --device" ;;
      entities:*) choices="--model --format --threshold --aggregation --json --output --field --device" ;;
      search:*) choices="--query --model --index --top --device --json" ;;
      serve:*) choices="--host --port --token --workers --lazy --cors --running --waiting --max-tokens --seconds --adapter --adapters --storage --log --device" ;;
      mcp:*) choices="--embed --rerank --ner --transcribe --chat --index --texts --max-tokens --device" ;;
      worker:*) choices="--worker-id --model --port --callback-url --host --token --device" ;;
      pull:*) choices="--revision --all --locked --file --json" ;;
      lock:*) choices="--file --revision --all --json" ;;
      quantize:*) choices="--type --output --imatrix --calibration --shard-size --json" ;;
      imatrix:*) choices="--output --context --device --json" ;;
      convert:*) choices="--output --dtype --json" ;;
      perplexity:*) choices="--against --device --json" ;;
      pack:*) choices="--output --revision --id --license --gem-version --limit --json" ;;
      rm:*) choices="--json" ;;
      ps:*) choices="--host --port --token --json" ;;
      models:*) choices="--prune --supported --json" ;;
      info:*) choices="--json" ;;
      doctor:*) choices="--json" ;;
      bench:*) choices="--seconds --device --json" ;;
      version:*) choices="--json" ;;
    esac
  fi
  mapfile -t COMPREPLY < <(compgen -W "$choices" -- "$word")
  [ "$COMP_CWORD" = 1 ] || [ "${word#-}" != "$word" ] || mapfile -t -O "${#COMPREPLY[@]}" COMPREPLY < <(compgen -f -- "$word")
}
complete -o filenames -F _red_candle red-candle
