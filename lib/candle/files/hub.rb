# frozen_string_literal: true

Candle::Native.complete(:Hub)

module Candle
  # Files of Hugging Face repositories, in the cache that Python's tools share.
  #
  # The environment has its usual meaning, at every call: `HF_HUB_CACHE`, `HF_HOME`, `HF_ENDPOINT`,
  # `HF_TOKEN` (or the token file), `HF_HUB_OFFLINE=1`, `HF_HUB_DOWNLOAD_TIMEOUT`, `HTTPS_PROXY`, `NO_PROXY`.
  # A download that was interrupted is resumed by the next one.
  module Hub
    class << self
      # Fetches one file, unless the cache has it.
      #
      # @param repo_id [String] `"owner/name"`
      # @param file [String] a path in the repository, such as `"1_Pooling/config.json"`
      # @param revision [String, nil] a branch, tag or commit; nil is `"main"`
      # @param token [String, nil] for private and gated models, before `HF_TOKEN`
      # @param cache_dir [String, Pathname, nil] where downloaded models are kept, before `HF_HUB_CACHE`
      # @return [String] the path of the file in the cache
      # @raise [ModelNotFoundError] when there is no such repository, revision or file
      # @raise [DownloadError] when it can't be fetched, with the reason
      # @raise [OfflineError] when it is not cached and `HF_HUB_OFFLINE` is set
      # @example
      #   Candle::Hub.respond_to?(:download) # => true
      def download(repo_id, file, revision: nil, token: nil, cache_dir: nil)
        id = text(repo_id, "repo_id")
        SourceHints.explained(id) { _download(id, text(file, "file"), settings(revision, token, cache_dir)) }
      end

      # @param repo_id [String] `"owner/name"`
      # @param revision [String, nil] a branch, tag or commit; nil is `"main"`
      # @param token [String, nil] for private and gated models, before `HF_TOKEN`
      # @param cache_dir [String, Pathname, nil] where downloaded models are kept, before `HF_HUB_CACHE`
      # @return [Array<String>] the names of all files of the repository
      # @raise [ModelNotFoundError] when there is no such repository or revision
      # @raise [DownloadError] when the hub can't be asked and the cache doesn't know
      # @raise [OfflineError] when nothing is cached and `HF_HUB_OFFLINE` is set
      def files(repo_id, revision: nil, token: nil, cache_dir: nil)
        id = text(repo_id, "repo_id")
        SourceHints.explained(id) { _files(id, settings(revision, token, cache_dir)) }
      end

      # Whether a file is in the cache, so that the network is not needed.
      #
      # @param repo_id [String] `"owner/name"`
      # @param file [String] a path in the repository
      # @param revision [String, nil] a branch, tag or commit; nil is `"main"`
      # @param token [String, nil] for private and gated models, before `HF_TOKEN`
      # @param cache_dir [String, Pathname, nil] where downloaded models are kept, before `HF_HUB_CACHE`
      # @return [Boolean]
      # @example
      #   Candle::Hub.cached?("nobody/nothing", "config.json") # => false
      def cached?(repo_id, file, revision: nil, token: nil, cache_dir: nil)
        _cached(text(repo_id, "repo_id"), text(file, "file"), settings(revision, token, cache_dir))
      end

      # Fetches a whole repository, or a part of it.
      #
      # @param repo_id [String] `"owner/name"`
      # @param revision [String, nil] a branch, tag or commit; nil is `"main"`
      # @param token [String, nil] for private and gated models, before `HF_TOKEN`
      # @param cache_dir [String, Pathname, nil] where downloaded models are kept, before `HF_HUB_CACHE`
      # @param files [Array<String>, String, nil] names or patterns such as `"*.json"`; nil is everything
      # @return [String] the directory that holds the files
      # @raise [ModelNotFoundError] when there is no such repository or revision, a plain name does not exist, or
      #   no file matches
      # @raise [DownloadError] when a file can't be fetched, with the reason
      # @raise [OfflineError] when a file is not cached and `HF_HUB_OFFLINE` is set
      def snapshot(repo_id, revision: nil, files: nil, token: nil, cache_dir: nil)
        patterns = files.nil? ? nil : Array(files).map { |pattern| text(pattern, "files") }
        id = text(repo_id, "repo_id")
        SourceHints.explained(id) { _snapshot(id, patterns, settings(revision, token, cache_dir)) }
      end

      # @api private
      # @return [Hash] what the engine takes
      def settings(revision, token, cache_dir)
        { revision: revision && text(revision, "revision"), token: token && text(token, "token"),
          cache_dir: cache_dir && text(cache_dir, "cache_dir") }.compact
      end

      private

      def text(value, name)
        return value.to_s if String === value || Symbol === value || Arguments.answers?(value, :to_path)

        raise ArgumentError, "#{name} takes a String, not #{Arguments.shown(value)}"
      end
    end
  end
end
