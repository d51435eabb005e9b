# fish completion for red-candle; put it into ~/.config/fish/completions.
complete -c red-candle -n __fish_use_subcommand -f -a chat -d 'Talk with a language model'
complete -c red-candle -n __fish_use_subcommand -f -a run -d 'Generate text from a prompt, standard input, or both'
complete -c red-candle -n __fish_use_subcommand -f -a embed -d 'Vectors of lines, JSON lines or images'
complete -c red-candle -n __fish_use_subcommand -f -a rerank -d 'Sort lines by how well they answer a query'
complete -c red-candle -n __fish_use_subcommand -f -a classify -d 'Labels of lines, JSON lines or images'
complete -c red-candle -n __fish_use_subcommand -f -a entities -d 'Named entities of lines or JSON lines'
complete -c red-candle -n __fish_use_subcommand -f -a search -d 'Find passages in text files by meaning'
complete -c red-candle -n __fish_use_subcommand -f -a serve -d 'Serve models to clients of OpenAI, TEI, Cohere, Jina and Ollama'
complete -c red-candle -n __fish_use_subcommand -f -a worker -d 'Serve one language model to an orchestrator'
complete -c red-candle -n __fish_use_subcommand -f -a pull -d 'Fetch a model into the cache'
complete -c red-candle -n __fish_use_subcommand -f -a lock -d 'Write down which bytes models are made of, in models.lock'
complete -c red-candle -n __fish_use_subcommand -f -a pack -d 'Build a gem that holds a model, to be found without a hub'
complete -c red-candle -n __fish_use_subcommand -f -a models -d 'What is in the cache'
complete -c red-candle -n __fish_use_subcommand -f -a info -d 'What a model is, and what it needs'
complete -c red-candle -n __fish_use_subcommand -f -a doctor -d 'Check this installation'
complete -c red-candle -n __fish_use_subcommand -f -a bench -d 'Measure a model on this machine'
complete -c red-candle -n __fish_use_subcommand -f -a version -d 'The version'
complete -c red-candle -n __fish_use_subcommand -f -a help -d 'Describe a command'
complete -c red-candle -n '__fish_seen_subcommand_from chat' -l max-tokens
complete -c red-candle -n '__fish_seen_subcommand_from chat' -l temperature
complete -c red-candle -n '__fish_seen_subcommand_from chat' -l top-p
complete -c red-candle -n '__fish_seen_subcommand_from chat' -l top-k
complete -c red-candle -n '__fish_seen_subcommand_from chat' -l seed
complete -c red-candle -n '__fish_seen_subcommand_from chat' -l system
complete -c red-candle -n '__fish_seen_subcommand_from chat' -l device
complete -c red-candle -n '__fish_seen_subcommand_from run' -l model
complete -c red-candle -n '__fish_seen_subcommand_from run' -l raw
complete -c red-candle -n '__fish_seen_subcommand_from run' -l schema
complete -c red-candle -n '__fish_seen_subcommand_from run' -l image
complete -c red-candle -n '__fish_seen_subcommand_from run' -l task
complete -c red-candle -n '__fish_seen_subcommand_from run' -l from
complete -c red-candle -n '__fish_seen_subcommand_from run' -l to
complete -c red-candle -n '__fish_seen_subcommand_from run' -l max-tokens
complete -c red-candle -n '__fish_seen_subcommand_from run' -l temperature
complete -c red-candle -n '__fish_seen_subcommand_from run' -l top-p
complete -c red-candle -n '__fish_seen_subcommand_from run' -l top-k
complete -c red-candle -n '__fish_seen_subcommand_from run' -l seed
complete -c red-candle -n '__fish_seen_subcommand_from run' -l system
complete -c red-candle -n '__fish_seen_subcommand_from run' -l device
complete -c red-candle -n '__fish_seen_subcommand_from run' -l json
complete -c red-candle -n '__fish_seen_subcommand_from embed' -l model
complete -c red-candle -n '__fish_seen_subcommand_from embed' -l format
complete -c red-candle -n '__fish_seen_subcommand_from embed' -l dimensions
complete -c red-candle -n '__fish_seen_subcommand_from embed' -l prompt-name
complete -c red-candle -n '__fish_seen_subcommand_from embed' -l output
complete -c red-candle -n '__fish_seen_subcommand_from embed' -l field
complete -c red-candle -n '__fish_seen_subcommand_from embed' -l device
complete -c red-candle -n '__fish_seen_subcommand_from rerank' -l model
complete -c red-candle -n '__fish_seen_subcommand_from rerank' -l top
complete -c red-candle -n '__fish_seen_subcommand_from rerank' -l format
complete -c red-candle -n '__fish_seen_subcommand_from rerank' -l output
complete -c red-candle -n '__fish_seen_subcommand_from rerank' -l field
complete -c red-candle -n '__fish_seen_subcommand_from rerank' -l device
complete -c red-candle -n '__fish_seen_subcommand_from rerank' -l json
complete -c red-candle -n '__fish_seen_subcommand_from classify' -l model
complete -c red-candle -n '__fish_seen_subcommand_from classify' -l format
complete -c red-candle -n '__fish_seen_subcommand_from classify' -l top
complete -c red-candle -n '__fish_seen_subcommand_from classify' -l labels
complete -c red-candle -n '__fish_seen_subcommand_from classify' -l output
complete -c red-candle -n '__fish_seen_subcommand_from classify' -l field
complete -c red-candle -n '__fish_seen_subcommand_from classify' -l device
complete -c red-candle -n '__fish_seen_subcommand_from entities' -l model
complete -c red-candle -n '__fish_seen_subcommand_from entities' -l format
complete -c red-candle -n '__fish_seen_subcommand_from entities' -l threshold
complete -c red-candle -n '__fish_seen_subcommand_from entities' -l output
complete -c red-candle -n '__fish_seen_subcommand_from entities' -l field
complete -c red-candle -n '__fish_seen_subcommand_from entities' -l device
complete -c red-candle -n '__fish_seen_subcommand_from search' -l query
complete -c red-candle -n '__fish_seen_subcommand_from search' -l model
complete -c red-candle -n '__fish_seen_subcommand_from search' -l index
complete -c red-candle -n '__fish_seen_subcommand_from search' -l top
complete -c red-candle -n '__fish_seen_subcommand_from search' -l device
complete -c red-candle -n '__fish_seen_subcommand_from search' -l json
complete -c red-candle -n '__fish_seen_subcommand_from serve' -l host
complete -c red-candle -n '__fish_seen_subcommand_from serve' -l port
complete -c red-candle -n '__fish_seen_subcommand_from serve' -l token
complete -c red-candle -n '__fish_seen_subcommand_from serve' -l workers
complete -c red-candle -n '__fish_seen_subcommand_from serve' -l lazy
complete -c red-candle -n '__fish_seen_subcommand_from serve' -l cors
complete -c red-candle -n '__fish_seen_subcommand_from serve' -l running
complete -c red-candle -n '__fish_seen_subcommand_from serve' -l waiting
complete -c red-candle -n '__fish_seen_subcommand_from serve' -l max-tokens
complete -c red-candle -n '__fish_seen_subcommand_from serve' -l seconds
complete -c red-candle -n '__fish_seen_subcommand_from serve' -l log
complete -c red-candle -n '__fish_seen_subcommand_from serve' -l device
complete -c red-candle -n '__fish_seen_subcommand_from worker' -l worker-id
complete -c red-candle -n '__fish_seen_subcommand_from worker' -l model
complete -c red-candle -n '__fish_seen_subcommand_from worker' -l port
complete -c red-candle -n '__fish_seen_subcommand_from worker' -l callback-url
complete -c red-candle -n '__fish_seen_subcommand_from worker' -l host
complete -c red-candle -n '__fish_seen_subcommand_from worker' -l token
complete -c red-candle -n '__fish_seen_subcommand_from worker' -l device
complete -c red-candle -n '__fish_seen_subcommand_from pull' -l revision
complete -c red-candle -n '__fish_seen_subcommand_from pull' -l all
complete -c red-candle -n '__fish_seen_subcommand_from pull' -l locked
complete -c red-candle -n '__fish_seen_subcommand_from pull' -l file
complete -c red-candle -n '__fish_seen_subcommand_from pull' -l json
complete -c red-candle -n '__fish_seen_subcommand_from lock' -l file
complete -c red-candle -n '__fish_seen_subcommand_from lock' -l revision
complete -c red-candle -n '__fish_seen_subcommand_from lock' -l all
complete -c red-candle -n '__fish_seen_subcommand_from lock' -l json
complete -c red-candle -n '__fish_seen_subcommand_from pack' -l output
complete -c red-candle -n '__fish_seen_subcommand_from pack' -l revision
complete -c red-candle -n '__fish_seen_subcommand_from pack' -l id
complete -c red-candle -n '__fish_seen_subcommand_from pack' -l license
complete -c red-candle -n '__fish_seen_subcommand_from pack' -l gem-version
complete -c red-candle -n '__fish_seen_subcommand_from pack' -l limit
complete -c red-candle -n '__fish_seen_subcommand_from pack' -l json
complete -c red-candle -n '__fish_seen_subcommand_from models' -l prune
complete -c red-candle -n '__fish_seen_subcommand_from models' -l json
complete -c red-candle -n '__fish_seen_subcommand_from info' -l json
complete -c red-candle -n '__fish_seen_subcommand_from doctor' -l json
complete -c red-candle -n '__fish_seen_subcommand_from bench' -l seconds
complete -c red-candle -n '__fish_seen_subcommand_from bench' -l device
complete -c red-candle -n '__fish_seen_subcommand_from bench' -l json
