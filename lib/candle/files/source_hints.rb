# frozen_string_literal: true

module Candle
  # What to write instead of a model's name that the hub does not have: addresses, the names of other programs and of
  # services, and names without their owner.
  #
  # @api private
  module SourceHints
    HUB_ADDRESS = %r{\A(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/(?:models/)?([\w.-]+/[\w.-]+)(?::([\w.-]+))?
                     (?:/(?:blob|resolve|raw|tree)/([^/?\#]+)(?:/([^?\#]+))?)?}x
    ADDRESS = %r{\A[a-z][a-z0-9+]*://}i
    # Ollama writes NAME:TAG.
    TAGGED = %r{\A([\w.-]+(?:/[\w.-]+)?):([\w.-]+)\z}
    # Models that only their makers run.
    HOSTED = /\A(?:gpt-[345]|chatgpt|o[134](?:-|\z)|claude-|gemini-|text-embedding-|command-[ar]|grok-|mistral-large|
              deepseek-(?:chat|reasoner)|voyage-|embed-(?:english|multilingual))/xi
    # Owners of repositories by how the names of these begin.
    OWNERS = {
      /\A(?:all|multi-qa|paraphrase|msmarco|stsb|nli|distiluse|gtr|sentence-t5)-|\ALaBSE\z/ => "sentence-transformers",
      /\Ams-marco-/ => "cross-encoder", /\Abge-/ => "BAAI", /\A(?:multilingual-)?e5-/ => "intfloat",
      /\Agte-(?:small|base|large)/ => "thenlper", /\Ajina-/ => "jinaai", /\Anomic-embed/ => "nomic-ai",
      /\Amxbai-/ => "mixedbread-ai", /\Abert-base-NER\z/ => "dslim", /\ASmol(?:LM|VLM)/ => "HuggingFaceTB",
      /\AQwen/ => "Qwen", /\A(?:Meta-)?Llama-\d/ => "meta-llama", /\Agemma-/ => "google", /\APhi-/ => "microsoft",
      /\AMi[sx]tral-\d/ => "mistralai", /\ATinyLlama/ => "TinyLlama", /\Agpt-oss-/ => "openai",
      /\Awhisper-/ => "openai", /\Aflan-t5-/ => "google", /\Abart-/ => "facebook", /\Anllb-/ => "facebook",
      /\Aopus-mt-/ => "Helsinki-NLP", /\Aclip-vit-/ => "openai", /\Asiglip/ => "google"
    }.freeze
    private_constant :HUB_ADDRESS, :ADDRESS, :TAGGED, :HOSTED, :OWNERS

    class << self
      # Runs a block that looks for a model. What it raises then says what to write instead, where that is known.
      #
      # @param source [String]
      # @return [Object] what the block returns
      def explained(source)
        yield
      rescue ModelNotFoundError, InvalidInputError, DownloadError, OfflineError => e
        hint = hint_after(e, source)
        raise if hint.nil? || e.message.include?(hint)

        raise e.class, "#{e.message}. #{hint}"
      end

      # @param source [String] what is neither a path nor the id of a repository
      # @return [String, nil] what to write instead, as a sentence
      def for(source)
        case source
        when HUB_ADDRESS then hub(Regexp.last_match)
        when ADDRESS then "Models are not loaded from addresses: download the file and pass its path"
        when TAGGED then tagged(*Regexp.last_match.captures)
        when %r{/}, /\A[.~]/ then nil
        when HOSTED
          "#{source} is not a model that can be downloaded. Use one with open weights, such as " \
          "#{LLM::DEFAULT_MODEL_PATH.inspect} to chat or #{EmbeddingModel::DEFAULT_MODEL_PATH.inspect} to embed"
        else bare(source)
        end
      end

      private

      # A name that could be the hub's may be right, and something else wrong.
      def hint_after(error, source)
        return if File.exist?(source) || (error.is_a?(InvalidInputError) && !source.match?(%r{:|/.*/}))

        self.for(source)
      end

      def hub(match)
        id, tag, revision, file = match.captures
        given = { revision: revision == "main" ? nil : revision, gguf_file: file&.end_with?(".gguf") ? file : nil }
        given = given.compact.map { |name, value| ", #{name}: #{value.inspect}" }.join
        choice = " and name the file with gguf_file:" if tag
        "Write #{id.inspect}#{given}#{choice}"
      end

      def tagged(name, tag)
        "NAME:TAG is how Ollama names models. Write the id of a repository on the hub with GGUF files, as in " \
          "\"owner/#{name.split("/").last}-#{tag}-GGUF\", or the path of a .gguf file"
      end

      def bare(name)
        owner = OWNERS.find { |pattern, _| pattern.match?(name) }&.last
        return "Write the id with its owner: #{"#{owner}/#{name}".inspect}" if owner

        "An id on the hub has the form \"owner/name\""
      end
    end
  end
end
