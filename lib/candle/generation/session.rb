# frozen_string_literal: true

require "json"
require "pathname"

module Candle
  # A conversation that keeps what the model has already read, so that each turn costs only what is new. Sessions share
  # the model's weights and may run in threads, one turn at a time each.
  class Session
    # @return [LLM, VLM]
    attr_reader :llm
    # @return [String, nil] the adapter that the conversation uses; nil is the base model
    attr_reader :adapter

    # @return [Completion, nil] what {#say} got last, with usage, timings and the reason why it ended
    attr_reader :completion

    # What {#save} wrote.
    #
    # @param llm [LLM] the model to go on with, which may be another one
    # @param path [String, Pathname]
    # @param options [Hash] `adapter:` and `chat_template:` instead of those that were saved
    # @return [Session]
    # @raise [InvalidInputError] when there is no such file, and when it is not a saved session
    def self.load(llm, path, **options)
      path = TextInput.path(path, "path")
      saved = JSON.parse(TextInput.utf8(File.binread(path), path), symbolize_names: true)
      raise InvalidInputError, "#{path} is not a saved session" unless saved.is_a?(Hash) && saved.key?(:messages)

      new(llm, **saved.slice(:messages, :adapter, :chat_template), **options)
    rescue Errno::ENOENT
      raise InvalidInputError, "there is no saved session #{path}: write one with Session#save"
    rescue SystemCallError, IOError => e
      raise InvalidInputError, "the session can't be read from #{path}: #{e.message}"
    rescue JSON::ParserError => e
      raise InvalidInputError, "#{path} is not a saved session: #{e.message}"
    end

    # @example
    #   llm = Candle::LLM.from_pretrained("spec/fixtures/tiny/decoders/llama")
    #   Candle::Session.new(llm, messages: [{ role: "user", content: "Hi" }]).messages.size # => 1
    #
    # @param llm [LLM, VLM]
    # @param system [String, nil] instructions that stand before the conversation
    # @param messages [Array<Hash>] the conversation so far, `{role:, content:}` each
    # @param adapter [String, nil] the adapter of the whole conversation
    # @param chat_template [String, nil] another template than the checkpoint's own
    # @raise [InvalidInputError] for what isn't a message, naming its index, and for a template that isn't a String
    # @raise [ArgumentError] for an adapter that isn't a name
    def initialize(llm, system: nil, messages: [], adapter: nil, chat_template: nil)
      @llm = llm
      @adapter = adapter && Arguments.label(adapter, "adapter")
      @chat_template = chat_template && TextInput.utf8(chat_template, "chat_template")
      @messages = system ? [{ role: "system", content: TextInput.utf8(system, "system") }] : []
      messages = Messages.checked(messages) { [*llm.tokenizer.chat_templates.values, chat_template] }
      @messages += messages.map { |message| message.transform_keys(&:to_sym) }
      @turn = Mutex.new
    end

    # Says something and returns the answer, which also goes into {#messages}. With a block the answer is streamed.
    #
    # @param text [String]
    # @param images [Array, String, Pathname, IO, Image] images for a vision-language model: paths, bytes of
    #   files, IOs or {Image}s, or one of these; a conversation with other images than paths can't be saved
    # @param options [Hash] as {LLM#chat} takes them
    # @yieldparam piece [String]
    # @return [String]
    # @raise [InvalidInputError] within the block of another answer
    def say(text, images: [], **options, &block)
      text = TextInput.utf8(text, "text")
      images = [images] unless Array === images
      content = images.map { |image| { type: "image", image: image } } << { type: "text", text: text } if images.any?
      in_turn do
        asked = @messages + [{ role: "user", content: content || text }]
        @completion = @llm.answer(asked, adapter: @adapter,
                                         **{ chat_template: @chat_template }.compact, **options, &block)
        reasoning = { reasoning_content: @completion.reasoning }.compact
        @messages = asked + [{ role: "assistant", content: @completion.text, **reasoning }]
        @completion.text
      end
    end

    # @return [Completion::Usage, nil] what the last {#say} cost in tokens
    def usage
      completion&.usage
    end

    # Writes the conversation as JSON, for {.load}. The model is not part of it. The file is the old or the new one,
    # whole, whatever happens meanwhile. It keeps its mode and owner, and a symbolic link is followed.
    #
    # @param path [String, Pathname]
    # @return [self]
    # @raise [InvalidInputError] when an image of the conversation is not a path, and when the file can't be written
    def save(path)
      if messages.flat_map { |message| Array(message[:content]) }.any? { |part| part.is_a?(Hash) && unwritable?(part) }
        raise InvalidInputError, "this conversation has an image that is not a path, and can't be saved"
      end

      state = { model_id: @llm.model_id, adapter: @adapter, chat_template: @chat_template, messages: messages }
      path = File.expand_path(TextInput.path(path, "path"))
      Utils.replace_file(path, "the session", "#{JSON.pretty_generate(state.compact)}\n")
      self
    end

    # @return [Array<Hash>] a copy of the messages so far, `{role:, content:}` each
    def messages
      @messages.map(&:dup)
    end

    # Forgets the latest exchange.
    #
    # @return [Array<Hash>, nil] the messages forgotten, nil when there was none
    # @raise [InvalidInputError] within the block of an answer
    def rollback
      in_turn do
        start = @messages.rindex { |message| message[:role] == "user" }
        start && @messages.slice!(start..)
      end
    end

    # @return [String] one line
    def inspect
      "#<Candle::Session #{@messages.size} messages of #{@llm.model_id}>"
    end

    private

    # One after the other; the block of an answer can't wait for that answer to end, nor can another fiber of its thread
    # where nothing lets the answer go on meanwhile.
    def in_turn
      if @turn.owned? || (@turn.locked? && @answering == Thread.current && Fiber.current_scheduler.nil?)
        raise InvalidInputError, "this session is still answering: call say and rollback after the answer, " \
                                 "or use another session"
      end

      @turn.synchronize do
        @answering = Thread.current
        yield
      end
    end

    def unwritable?(part)
      image = part[:image] || part["image"]
      !image.nil? && !image.is_a?(Pathname) && (!image.is_a?(String) || Image.like?(image))
    end
  end
end
