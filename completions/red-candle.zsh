#compdef red-candle
# zsh completion for red-candle; put it into a directory of $fpath under the name _red-candle.
local -a verbs
verbs=(
  'chat:Talk with a language model'
  'run:Generate text from a prompt, standard input, or both'
  'embed:Vectors of lines, JSON lines or images'
  'rerank:Sort lines by how well they answer a query'
  'classify:Labels of lines, JSON lines or images'
  'entities:Named entities of lines or JSON lines'
  'search:Find passages in text files by meaning'
  'serve:Serve models to clients of OpenAI, TEI, Cohere, Jina and Ollama'
  'worker:Serve one language model to an orchestrator'
  'pull:Fetch a model into the cache'
  'lock:Write down which bytes models are made of, in models.lock'
  'pack:Build a gem that holds a model, to be found without a hub'
  'models:What is in the cache'
  'info:What a model is, and what it needs'
  'doctor:Check this installation'
  'bench:Measure a model on this machine'
  'version:The version'
  'help:Describe a command'
)
if (( CURRENT == 2 )); then
  _describe command verbs
  return
fi
case $words[2] in
  chat) _arguments '--max-tokens' '--temperature' '--top-p' '--top-k' '--seed' '--system' '--device' '*:file:_files' ;;
  run) _arguments '--model' '--raw' '--schema' '--image' '--task' '--from' '--to' '--max-tokens' '--temperature' '--top-p' '--top-k' '--seed' '--system' '--device' '--json' '*:file:_files' ;;
  embed) _arguments '--model' '--format' '--dimensions' '--prompt-name' '--output' '--field' '--device' '*:file:_files' ;;
  rerank) _arguments '--model' '--top' '--format' '--output' '--field' '--device' '--json' '*:file:_files' ;;
  classify) _arguments '--model' '--format' '--top' '--labels' '--output' '--field' '--device' '*:file:_files' ;;
  entities) _arguments '--model' '--format' '--threshold' '--output' '--field' '--device' '*:file:_files' ;;
  search) _arguments '--query' '--model' '--index' '--top' '--device' '--json' '*:file:_files' ;;
  serve) _arguments '--host' '--port' '--token' '--workers' '--lazy' '--cors' '--running' '--waiting' '--max-tokens' '--seconds' '--log' '--device' '*:file:_files' ;;
  worker) _arguments '--worker-id' '--model' '--port' '--callback-url' '--host' '--token' '--device' '*:file:_files' ;;
  pull) _arguments '--revision' '--all' '--locked' '--file' '--json' '*:file:_files' ;;
  lock) _arguments '--file' '--revision' '--all' '--json' '*:file:_files' ;;
  pack) _arguments '--output' '--revision' '--id' '--license' '--gem-version' '--limit' '--json' '*:file:_files' ;;
  models) _arguments '--prune' '--json' '*:file:_files' ;;
  info) _arguments '--json' '*:file:_files' ;;
  doctor) _arguments '--json' '*:file:_files' ;;
  bench) _arguments '--seconds' '--device' '--json' '*:file:_files' ;;
  version) _arguments  '*:file:_files' ;;
  help) _describe command verbs ;;
esac
