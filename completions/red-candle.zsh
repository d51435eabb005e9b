#compdef red-candle
# zsh completion for red-candle; put it into a directory of $fpath under the name _red-candle.
# Written by rake completions.
local -a verbs
verbs=(
  'help:Describe available commands or one specific command'
  'chat:Chat with a language model'
  'run:Generate text from a prompt, standard input, or both'
  'embed:Embed lines, JSON lines or images'
  'rerank:Sort lines by relevance to a query'
  'transcribe:Convert speech in audio files to text'
  'detect:Detect objects in images'
  'read:Read the text of document images'
  'segment:Label the parts of an image'
  'depth:Estimate the depth of each pixel of an image'
  'classify:Classify lines, JSON lines or images'
  'entities:Find named entities in lines or JSON lines'
  'search:Search text files by meaning'
  'serve:Serve models to clients of OpenAI, Anthropic, TEI, Cohere, Ollama'
  'mcp:Offer models as tools to MCP clients, on standard input and output'
  'worker:Serve one language model to an orchestrator'
  'pull:Download a model into the cache'
  'lock:Pin models by hash in models.lock'
  'quantize:Write a checkpoint as a GGUF file'
  'imatrix:Measure an importance matrix of a model'
  'convert:Write quantized weights as dense ones'
  'perplexity:Measure how well a model predicts a text'
  'pack:Build a gem that contains a model'
  'rm:Remove models from the cache'
  'ps:List the models of a running server'
  'models:List the models of the cache'
  'info:Show kind, architecture and memory of a model'
  'doctor:Check this installation'
  'bench:Measure a model on this machine'
  'version:The version'
)
if (( CURRENT == 2 )); then
  _describe command verbs
  return
fi
case $words[2] in
  help) _describe command verbs ;;
  chat) _arguments '--max-tokens[maximum of new tokens; default\: 512, or the checkpoint’s]' '--temperature[0 is greedy decoding]' '--top-p' '--top-k' '--seed[the same seed gives the same text]' '--system[instructions before the conversation]' '--device[cpu, cuda, cuda\:1 or metal; default\: the best available]' '--gpu-layers[layers of a language model on the device; the others are on the CPU\: a number, or auto for as many as fit]' '*:file:_files' ;;
  run) _arguments '--model[a language model, vision-language model or seq2seq model]' '--raw[without the chat template]' '--schema[file with a JSON schema for the answer]' '--image[image files, for a vision-language model]' '--task[task of a seq2seq model]:task:(translate summarize)' '--from[the language to translate from]' '--to[the language to translate to]' '--max-tokens[maximum of new tokens; default\: 512, or the checkpoint’s]' '--temperature[0 is greedy decoding]' '--top-p' '--top-k' '--seed[the same seed gives the same text]' '--system[instructions before the conversation]' '--device[cpu, cuda, cuda\:1 or metal; default\: the best available]' '--gpu-layers[layers of a language model on the device; the others are on the CPU\: a number, or auto for as many as fit]' '--json[write JSON]' '*:file:_files' ;;
  embed) _arguments '--model[the embedding model]' '--format[packed is little-endian f32]:format:(jsonl csv packed)' '--dimensions[keep this many components]' '--prompt-name[one of the model’s own prompts, such as query]' '--json[write JSON]' '--output[output file; an interrupted run resumes]' '--field[field of JSON lines that has the text]' '--device[cpu, cuda, cuda\:1 or metal; default\: the best available]' '*:file:_files' ;;
  rerank) _arguments '--model[the reranker]' '--top[number of results]' '--format[machine-readable output]:format:(jsonl csv)' '--output[output file]' '--field[field of JSON lines that has the text]' '--device[cpu, cuda, cuda\:1 or metal; default\: the best available]' '--json[write JSON]' '*:file:_files' ;;
  transcribe) _arguments '--model[the speech model]' '--format[srt and vtt are subtitles]:format:(txt srt vtt json)' '--language[a code or an English name; default\: detected]' '--translate[translate into English]' '--words[times of words, in json]' '--prompt[text before the audio; its spelling of names is followed]' '--hotwords[names that are likely to be spoken]' '--vocabulary[the only words of the text]' '--num-beams[beams of the beam search]' '--output[output file; results are appended]' '--json[write JSON]' '--device[cpu, cuda, cuda\:1 or metal; default\: the best available]' '*:file:_files' ;;
  detect) _arguments '--model[the detector]' '--threshold[minimum score]' '--labels[only these labels; required by OWL-ViT and Grounding DINO]' '--output[PNG file; the image with its boxes]' '--json[write JSON]' '--device[cpu, cuda, cuda\:1 or metal; default\: the best available]' '*:file:_files' ;;
  read) _arguments '--model[the document reader]' '--format[markdown needs a model that supports it]:format:(text markdown)' '--task[task of Florence-2\: ocr, caption, detect, ...]' '--text[input text of the task]' '--prompt[start of the text, or the question]' '--max-tokens[maximum of new tokens]' '--output[output file; results are appended]' '--json[write JSON]' '--device[cpu, cuda, cuda\:1 or metal; default\: the best available]' '*:file:_files' ;;
  segment) _arguments '--model[the segmenter]' '--labels[only parts with these labels]' '--output[directory for masks as PNG files]' '--json[write JSON]' '--device[cpu, cuda, cuda\:1 or metal; default\: the best available]' '*:file:_files' ;;
  depth) _arguments '--model[the estimator]' '--output[directory for depths as PNG files]' '--json[write JSON]' '--device[cpu, cuda, cuda\:1 or metal; default\: the best available]' '*:file:_files' ;;
  classify) _arguments '--model[the classifier]' '--format:format:(jsonl csv)' '--top[labels per line]' '--labels[labels of images, for CLIP]' '--json[write JSON]' '--output[output file; an interrupted run resumes]' '--field[field of JSON lines that has the text]' '--device[cpu, cuda, cuda\:1 or metal; default\: the best available]' '*:file:_files' ;;
  entities) _arguments '--model[the token classifier]' '--format:format:(jsonl csv)' '--threshold[minimum confidence]' '--aggregation[how tokens are joined; first, average and max keep words whole]:aggregation:(none simple first average max)' '--json[write JSON]' '--output[output file; an interrupted run resumes]' '--field[field of JSON lines that has the text]' '--device[cpu, cuda, cuda\:1 or metal; default\: the best available]' '*:file:_files' ;;
  search) _arguments '--query[what to find]' '--model[the embedding model]' '--index[file of the vectors]' '--top[number of passages]' '--device[cpu, cuda, cuda\:1 or metal; default\: the best available]' '--json[write JSON]' '*:file:_files' ;;
  serve) _arguments '--host[address to listen on; other than loopback needs a token]' '--port[0 takes a free port]' '--token[token of clients; default\: RED_CANDLE_TOKEN]' '--workers[processes that share the weights]' '--lazy[load models on their first request]' '--cors[origins of web pages that may send requests]' '--running[requests computed at the same time]' '--waiting[requests in the queue; more get status 429]' '--max-tokens[maximum of new tokens of a request]' '--seconds[time limit of a request]' '--adapter[LoRA adapters\: MODEL\:NAME=SOURCE, served as the model MODEL\:NAME]' '--adapters[folder of LoRA adapters that clients with the token may load and unload]' '--storage[folder of uploaded files, batches and responses; default\: a temporary one]' '--log[log requests as JSON lines to standard error]' '--device[cpu, cuda, cuda\:1 or metal; default\: the best available]' '*:file:_files' ;;
  mcp) _arguments '--embed[embedding model, for the tools embed and search]' '--rerank[reranker, for the tool rerank]' '--ner[token classifier, for the tool extract]' '--transcribe[speech model, for the tool transcribe]' '--chat[language model, for the tool chat]' '--index[file of a Candle\:\:Index or of red-candle search, for the tool search]' '--texts[texts of a Candle\:\:Index\: JSON lines with id and text, or numbered lines]' '--max-tokens[maximum of new tokens of an answer]' '--device[cpu, cuda, cuda\:1 or metal; default\: the best available]' '*:file:_files' ;;
  worker) _arguments '--worker-id' '--model[a directory, a GGUF file or an id]' '--port' '--callback-url[URL that is called when the worker is ready, or none]' '--host' '--token[token of the orchestrator; default\: RED_CANDLE_TOKEN]' '--device[cpu, cuda, cuda\:1 or metal; default\: the best available]' '*:file:_files' ;;
  pull) _arguments '--revision[a branch, tag or commit]' '--all[every file of the repository]' '--locked[download what models.lock lists; without an ID]' '--file[the file that --locked reads]' '--json[write JSON]' '*:file:_files' ;;
  lock) _arguments '--file[lock file]' '--revision[a branch, tag or commit]' '--all[every file, not only those that a load reads]' '--json[write JSON]' '*:file:_files' ;;
  quantize) _arguments '--type[the type of most weights]' '--output[the GGUF file]' '--imatrix[an importance matrix of the model, from `red-candle imatrix` or llama-imatrix]' '--calibration[a text file on which the importance matrix is measured]' '--shard-size[size of a file, such as 2G; larger models become several]' '--json[write JSON]' '*:file:_files' ;;
  imatrix) _arguments '--output[the GGUF file]' '--context[tokens per forward pass]' '--device[cpu, cuda, cuda\:1 or metal; default\: the best available]' '--json[write JSON]' '*:file:_files' ;;
  convert) _arguments '--output[the directory; it must not exist]' '--dtype[the type of the weights]:dtype:(f32 f16 bf16)' '--json[write JSON]' '*:file:_files' ;;
  perplexity) _arguments '--against[another model with the same vocabulary, to compare log probabilities with]' '--device[cpu, cuda, cuda\:1 or metal; default\: the best available]' '--json[write JSON]' '*:file:_files' ;;
  pack) _arguments '--output[the directory for the gems]' '--revision[a branch, tag or commit]' '--id[id of a packed directory]' '--license[license; default\: the model card’s]' '--gem-version[the version of the gems]' '--limit[maximum size of a gem]' '--json[write JSON]' '*:file:_files' ;;
  rm) _arguments '--json[write JSON]' '*:file:_files' ;;
  ps) _arguments '--host[where the server listens]' '--port' '--token[the token of the server; also from RED_CANDLE_TOKEN]' '--json[write JSON]' '*:file:_files' ;;
  models) _arguments '--prune[remove files that no current revision uses]' '--supported[list the model types that this release runs instead]' '--json[write JSON]' '*:file:_files' ;;
  info) _arguments '--json[write JSON]' '*:file:_files' ;;
  doctor) _arguments '--json[write JSON]' '*:file:_files' ;;
  bench) _arguments '--seconds[how long to measure]' '--device[cpu, cuda, cuda\:1 or metal; default\: the best available]' '--json[write JSON]' '*:file:_files' ;;
  version) _arguments '--json[write JSON]' '*:file:_files' ;;
esac
