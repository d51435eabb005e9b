# bash completion for red-candle; source it, or put it where bash-completion looks.
_red_candle() {
  local word=${COMP_WORDS[COMP_CWORD]} verb=${COMP_WORDS[1]} choices
  if [ "$COMP_CWORD" = 1 ]; then
    choices="chat run embed rerank classify entities search serve worker pull lock pack models info doctor bench version help"
  else
    case $verb in
      chat) choices="--max-tokens --temperature --top-p --top-k --seed --system --device" ;;
      run) choices="--model --raw --schema --image --task --from --to --max-tokens --temperature --top-p --top-k --seed --system --device --json" ;;
      embed) choices="--model --format --dimensions --prompt-name --output --field --device" ;;
      rerank) choices="--model --top --format --output --field --device --json" ;;
      classify) choices="--model --format --top --labels --output --field --device" ;;
      entities) choices="--model --format --threshold --output --field --device" ;;
      search) choices="--query --model --index --top --device --json" ;;
      serve) choices="--host --port --token --workers --lazy --cors --running --waiting --max-tokens --seconds --log --device" ;;
      worker) choices="--worker-id --model --port --callback-url --host --token --device" ;;
      pull) choices="--revision --all --locked --file --json" ;;
      lock) choices="--file --revision --all --json" ;;
      pack) choices="--output --revision --id --license --gem-version --limit --json" ;;
      models) choices="--prune --json" ;;
      info) choices="--json" ;;
      doctor) choices="--json" ;;
      bench) choices="--seconds --device --json" ;;
      version) choices="" ;;
      help) choices="chat run embed rerank classify entities search serve worker pull lock pack models info doctor bench version" ;;
    esac
  fi
  mapfile -t COMPREPLY < <(compgen -W "$choices" -- "$word")
  [ "$COMP_CWORD" = 1 ] || [ "${word#-}" != "$word" ] || mapfile -t -O "${#COMPREPLY[@]}" COMPREPLY < <(compgen -f -- "$word")
}
complete -o filenames -F _red_candle red-candle
